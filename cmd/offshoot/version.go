package main

import (
	"fmt"
	"runtime"
	"runtime/debug"
	"strings"

	"github.com/spf13/cobra"
)

func newVersionCommand(a *app) *cobra.Command {
	return &cobra.Command{
		Use:   "version",
		Short: "Say which build this is",
		Args:  arguments(0, 0),
		RunE: func(*cobra.Command, []string) error {
			_, err := fmt.Fprintf(a.stdout, "offshoot %s\n%s %s/%s\n", a.version(), a.goVersion(), runtime.GOOS, runtime.GOARCH)
			return err
		},
	}
}

// version is the module's version and, of a build from a checkout, the revision.
func (a *app) version() string {
	info, ok := a.build()
	if !ok {
		return "(unknown)"
	}
	version := info.Main.Version
	if version == "" {
		version = "(devel)"
	}
	var vcs []string
	if rev := setting(info, "vcs.revision"); rev != "" {
		vcs = append(vcs, "revision "+rev)
	}
	if at := setting(info, "vcs.time"); at != "" {
		vcs = append(vcs, "of "+at)
	}
	if setting(info, "vcs.modified") == "true" {
		vcs = append(vcs, "with changes")
	}
	if len(vcs) > 0 {
		version += " (" + strings.Join(vcs, " ") + ")"
	}
	return version
}

// userAgent is what a model's endpoint is told.
func userAgent() string {
	version := "devel"
	if info, ok := debug.ReadBuildInfo(); ok && info.Main.Version != "" {
		version = strings.Trim(info.Main.Version, "()")
	}
	return "offshoot/" + version
}

func (a *app) goVersion() string {
	if info, ok := a.build(); ok && info.GoVersion != "" {
		return info.GoVersion
	}
	return runtime.Version()
}

func setting(info *debug.BuildInfo, key string) string {
	for _, s := range info.Settings {
		if s.Key == key {
			return s.Value
		}
	}
	return ""
}
