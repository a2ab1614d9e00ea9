package main

import (
	"fmt"

	"github.com/spf13/cobra"

	"github.com/offshoot-dev/offshoot/harness/config"
)

func newTrustCommand(a *app) *cobra.Command {
	return &cobra.Command{
		Use:   "trust [DIR]",
		Short: "Let a folder's offshoot.yaml and agent files say everything",
		Long: "Remembers DIR (default: --cwd, else here) as a folder whose offshoot.yaml may also set\n" +
			"endpoints, stores, permissions and whatever else is refused otherwise, and whose agent files\n" +
			"may have templates, larger limits and symbolic links out of it. The folder is printed as it\n" +
			"is remembered; folders below it are not trusted with it.",
		Args: arguments(0, 1),
		RunE: func(cmd *cobra.Command, args []string) error {
			dir, err := a.folder(cmd)
			if err != nil {
				return err
			}
			if len(args) > 0 {
				// As --cwd would be: relative to where the person is.
				if dir, err = a.within(args[0]); err != nil {
					return err
				}
			}
			places, err := config.Dirs(a.env)
			if err != nil {
				return err
			}
			real, err := config.Trust(places.Data, dir)
			if err != nil {
				return err
			}
			_, err = fmt.Fprintln(a.stdout, real)
			return err
		},
	}
}
