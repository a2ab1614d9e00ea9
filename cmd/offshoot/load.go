package main

import (
	"path/filepath"

	"github.com/spf13/cobra"

	"github.com/offshoot-dev/offshoot/harness/config"
)

// folder returns the absolute path of the folder that a command works in: --cwd,
// else the process's own. It need not exist.
func (a *app) folder(cmd *cobra.Command) (string, error) {
	if cmd.Flags().Changed("cwd") && a.global.cwd == "" {
		return "", usagef("flag --cwd: the folder is empty")
	}
	if filepath.IsAbs(a.global.cwd) {
		return filepath.Clean(a.global.cwd), nil
	}
	wd, err := a.getwd()
	if err != nil {
		return "", usagef("the working directory cannot be used: %w", err)
	}
	return filepath.Join(wd, a.global.cwd), nil
}

// within makes a path that a person wrote absolute.
func (a *app) within(path string) (string, error) {
	if filepath.IsAbs(path) {
		return path, nil
	}
	wd, err := a.getwd()
	if err != nil {
		return "", usagef("the working directory cannot be used: %w", err)
	}
	return filepath.Join(wd, path), nil
}

// load reads the configuration of a command from the files, the environment and
// the flags: f are those of the command itself, to which the global ones are
// added. cwd is the folder to work in; "" means what folder returns. It reads
// files and changes nothing.
func (a *app) load(cmd *cobra.Command, f config.Flags, cwd string) (*config.Effective, error) {
	o, err := a.loadOptions(cmd, f, cwd)
	if err != nil {
		return nil, err
	}
	return config.Load(o)
}

// loadOptions is what load reads.
func (a *app) loadOptions(cmd *cobra.Command, f config.Flags, cwd string) (o config.LoadOptions, err error) {
	o = config.LoadOptions{Cwd: cwd, Env: a.env, Flags: f}
	if cwd == "" {
		if o.Cwd, err = a.folder(cmd); err != nil {
			return o, err
		}
	}
	if cmd.Flags().Changed("config") {
		if a.global.config == "" {
			return o, usagef("flag --config: the file is empty")
		}
		if o.ConfigFile, err = a.within(a.global.config); err != nil {
			return o, err
		}
	}
	if cmd.Flags().Changed("store") && f.Store == nil {
		o.Flags.Store = &a.global.store
	}
	return o, nil
}
