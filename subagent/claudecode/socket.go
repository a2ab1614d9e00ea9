package claudecode

import (
	"cmp"
	"errors"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"syscall"
)

// sweep removes the socket that a product of this process id has left: it removes it itself
// unless it is killed. One that somebody listens at is that of another process.
func (p *Provider) sweep(pid int) error {
	if pid <= 1 {
		return nil
	}
	name := strconv.Itoa(pid) + ".sock"
	temp := cmp.Or(p.env("CLAUDE_CODE_TMPDIR"), p.env("TMPDIR"), "/tmp")
	var errs []error
	for _, dir := range []string{
		filepath.Join(cmp.Or(p.env("XDG_RUNTIME_DIR"), temp), "cc-socks"),
		filepath.Join("/tmp", "cc-socks-"+strconv.Itoa(os.Getuid())), // where the path above is too long for a socket
	} {
		path := filepath.Join(dir, name)
		info, err := os.Lstat(path)
		if err != nil || info.Mode().Type() != fs.ModeSocket {
			continue
		}
		conn, err := net.Dial("unix", path)
		switch {
		case err == nil:
			errs = append(errs, conn.Close())
		case errors.Is(err, syscall.ECONNREFUSED):
			if err := os.Remove(path); !errors.Is(err, fs.ErrNotExist) {
				errs = append(errs, err)
			}
		default:
			errs = append(errs, err)
		}
	}
	return errors.Join(errs...)
}

// env is a variable of the product's environment.
func (p *Provider) env(name string) string {
	if value, ok := p.cfg.Env[name]; ok {
		return value
	}
	return os.Getenv(name)
}
