package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
)

// The database, and what the go command says of its content. To renew it, take both from
//
//	go mod download -json golang.org/x/vulndb@latest
//
// It stands here and not in go.mod, where it would bring the modules of its own programs with it.
const (
	databasePath    = "golang.org/x/vulndb"
	databaseVersion = "v0.0.0-20261105234957-e22db6528018"
	databaseSum     = "h1:mfngRv0Yoh0VApsXKEN82CjD99kl7mtparN3bs3JnqI="
)

// database returns the address of the reports, which are in the module cache then.
func database(ctx context.Context) (string, error) {
	var module struct{ Dir, Sum, Error string }
	cmd := exec.CommandContext(ctx, "go", "mod", "download", "-json", databasePath+"@"+databaseVersion)
	cmd.Dir = os.TempDir() // outside of any module
	cmd.Env = append(os.Environ(), "PWD="+cmd.Dir, "GOWORK=off", "GOFLAGS=")
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	data, err := cmd.Output()
	if jsonErr := json.Unmarshal(data, &module); jsonErr != nil {
		return "", fmt.Errorf("download %s: %w: %s", databasePath, errors.Join(err, jsonErr), stderr.Bytes())
	}
	if err != nil || module.Error != "" {
		return "", fmt.Errorf("download %s: %w: %s", databasePath, err, module.Error)
	}
	return reports(module.Dir, module.Sum)
}

// reports returns the address of the reports in the database's folder, if they are what is pinned.
func reports(dir, sum string) (string, error) {
	if sum != databaseSum {
		return "", fmt.Errorf("%s@%s has the content %s, not %s", databasePath, databaseVersion, sum, databaseSum)
	}
	// An empty database would find nothing wrong anywhere.
	osv := filepath.Join(dir, "data", "osv")
	if paths, err := filepath.Glob(filepath.Join(osv, "GO-*.json")); err != nil || len(paths) == 0 {
		return "", fmt.Errorf("%s@%s has no reports in %s", databasePath, databaseVersion, osv)
	}
	return "file://" + filepath.ToSlash(osv), nil
}
