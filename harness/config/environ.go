package config

import (
	"net"
	"net/url"
	"os"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
)

// Environ looks one environment variable up, as os.LookupEnv does. Every function of this package that needs the
// environment takes one; none reads the process's own. A nil Environ is an empty environment. It must be safe for the
// goroutines that the caller uses it from.
type Environ func(name string) (string, bool)

// OSEnviron is the process's environment as an Environ.
func OSEnviron(name string) (string, bool) { return os.LookupEnv(name) }

// MapEnviron is an environment made of m, which must not change while it is in use.
func MapEnviron(m map[string]string) Environ {
	return func(name string) (string, bool) { v, ok := m[name]; return v, ok }
}

// get returns a variable's value; one that is set to nothing counts as absent, as shells and the vendors' tools treat it.
func (env Environ) get(name string) (string, bool) {
	if env == nil || name == "" {
		return "", false
	}
	v, ok := env(name)
	return v, ok && v != ""
}

// The variables of this program itself.
const (
	EnvHome       = "OFFSHOOT_HOME"
	EnvModel      = "OFFSHOOT_MODEL"
	EnvPermission = "OFFSHOOT_PERMISSION"
	EnvStore      = "OFFSHOOT_STORE"
)

// Paths are the places where the program keeps its things: absolute paths of which none need exist.
type Paths struct {
	Data       string // the data folder: sessions, the list of trusted folders
	ConfigFile string // the user's configuration file
}

// Dirs derives the program's places from the environment. $OFFSHOOT_HOME holds both when it is set; otherwise data is in the
// platform's data folder and the configuration in $XDG_CONFIG_HOME/offshoot/config.yaml, by default under ~/.config. As the
// XDG rules demand, a relative XDG variable is ignored. The error is an *Error of KindUsage when no home is known.
func Dirs(env Environ) (Paths, error) { return dirs(env, runtime.GOOS) }

func dirs(env Environ, goos string) (Paths, error) {
	if home, ok := env.get(EnvHome); ok {
		abs, err := filepath.Abs(home)
		if err != nil {
			return Paths{}, &Error{Kind: KindUsage, Origin: "env " + EnvHome, Msg: "cannot be made absolute", Err: err}
		}
		return Paths{Data: abs, ConfigFile: filepath.Join(abs, "config.yaml")}, nil
	}
	home := homeDir(env, goos)
	configHome := absolute(env, "XDG_CONFIG_HOME", home, ".config")
	var data string
	switch goos {
	case "windows":
		data = absolute(env, "LocalAppData", home, "AppData", "Local")
	case "darwin":
		data = absolute(env, "", home, "Library", "Application Support")
	default:
		data = absolute(env, "XDG_DATA_HOME", home, ".local", "share")
	}
	if data == "" || configHome == "" {
		return Paths{}, &Error{Kind: KindUsage, Msg: "no home folder is known: set HOME or " + EnvHome}
	}
	return Paths{
		Data:       filepath.Join(data, "offshoot"),
		ConfigFile: filepath.Join(configHome, "offshoot", "config.yaml"),
	}, nil
}

func homeDir(env Environ, goos string) string {
	name := "HOME"
	if goos == "windows" {
		name = "USERPROFILE"
	}
	home, _ := env.get(name)
	if !filepath.IsAbs(home) {
		return ""
	}
	return home
}

// absolute is the variable's value when it holds an absolute path, else the parts below home, else "".
func absolute(env Environ, name, home string, parts ...string) string {
	if v, ok := env.get(name); ok && filepath.IsAbs(v) {
		return v
	}
	if home == "" {
		return ""
	}
	return filepath.Join(append([]string{home}, parts...)...)
}

// ollamaPort is where Ollama listens when nothing else is said.
const ollamaPort = "11434"

// OllamaBaseURL turns a value of OLLAMA_HOST into the base URL of Ollama's OpenAI-compatible endpoint. It takes the forms
// that Ollama takes: HOST, HOST:PORT, :PORT, an IPv6 address with or without brackets, and a URL, whose scheme then decides
// the default port (http 80, https 443; without a scheme http and 11434). An address that means "listen everywhere" becomes
// the loopback address, because this side connects. ok is false when the value is none of these.
func OllamaBaseURL(value string) (base string, ok bool) {
	value = strings.Trim(strings.TrimSpace(value), `"'`)
	scheme, rest, hasScheme := strings.Cut(value, "://")
	port := ollamaPort
	switch {
	case !hasScheme:
		scheme, rest = "http", value
	case scheme == "http":
		port = "80"
	case scheme == "https":
		port = "443"
	default:
		return "", false
	}
	hostPort, path, _ := strings.Cut(rest, "/")
	host := hostPort
	if h, p, err := net.SplitHostPort(hostPort); err == nil {
		host = h
		if p != "" {
			port = p
		}
	}
	host = strings.Trim(host, "[]")
	if n, err := strconv.ParseUint(port, 10, 16); err != nil || n == 0 {
		return "", false
	}
	switch ip := net.ParseIP(host); {
	case host == "":
		host = "127.0.0.1"
	case ip != nil && ip.IsUnspecified() && ip.To4() == nil:
		host = "::1"
	case ip != nil && ip.IsUnspecified():
		host = "127.0.0.1"
	case ip == nil && strings.ContainsAny(host, ":@[]?# \t\\%"):
		return "", false
	}
	u := url.URL{Scheme: scheme, Host: net.JoinHostPort(host, port)}
	if path = strings.Trim(path, "/"); path != "" {
		u.Path = "/" + path
	}
	base, problem := parseBaseURL(u.String() + "/v1")
	return base, problem == ""
}
