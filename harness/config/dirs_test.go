package config

import (
	"path/filepath"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// TestDirs: where the program keeps its things, per platform. It is an internal test because the platform is not an argument
// of Dirs.
func TestDirs(t *testing.T) {
	tests := []struct {
		name, goos string
		env        map[string]string
		want       Paths // empty: an error
	}{
		{"linux", "linux", map[string]string{"HOME": "/h"}, Paths{"/h/.local/share/offshoot", "/h/.config/offshoot/config.yaml"}},
		{"linux with XDG", "linux", map[string]string{"HOME": "/h", "XDG_DATA_HOME": "/d", "XDG_CONFIG_HOME": "/c"}, Paths{"/d/offshoot", "/c/offshoot/config.yaml"}},
		{"relative XDG is ignored", "linux", map[string]string{"HOME": "/h", "XDG_DATA_HOME": "d", "XDG_CONFIG_HOME": "c"}, Paths{"/h/.local/share/offshoot", "/h/.config/offshoot/config.yaml"}},
		{"mac", "darwin", map[string]string{"HOME": "/h", "XDG_DATA_HOME": "/d"}, Paths{"/h/Library/Application Support/offshoot", "/h/.config/offshoot/config.yaml"}},
		{"windows", "windows", map[string]string{"USERPROFILE": "/u", "LocalAppData": "/l"}, Paths{"/l/offshoot", "/u/.config/offshoot/config.yaml"}},
		{"windows without LocalAppData", "windows", map[string]string{"USERPROFILE": "/u"}, Paths{"/u/AppData/Local/offshoot", "/u/.config/offshoot/config.yaml"}},
		{"home of its own", "linux", map[string]string{"OFFSHOOT_HOME": "/o", "XDG_CONFIG_HOME": "/c"}, Paths{"/o", "/o/config.yaml"}},
		{"home of its own set to nothing", "linux", map[string]string{"OFFSHOOT_HOME": "", "HOME": "/h"}, Paths{"/h/.local/share/offshoot", "/h/.config/offshoot/config.yaml"}},
		{"no home", "linux", map[string]string{}, Paths{}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			got, err := dirs(MapEnviron(tt.env), tt.goos)
			if (err != nil) != (tt.want == Paths{}) {
				t.Fatalf("err %v", err)
			}
			got.Data, got.ConfigFile = filepath.ToSlash(got.Data), filepath.ToSlash(got.ConfigFile)
			if err == nil {
				if diff := cmp.Diff(tt.want, got); diff != "" {
					t.Error(diff)
				}
			}
		})
	}
	if got, err := dirs(MapEnviron(map[string]string{"OFFSHOOT_HOME": "rel"}), "linux"); err != nil || !filepath.IsAbs(got.Data) {
		t.Errorf("a relative home of its own: %+v, %v", got, err)
	}
}
