package main

import "github.com/spf13/cobra"

func newAgentsCommand(a *app) *cobra.Command {
	cmd := group(&cobra.Command{
		Use:   "agents",
		Short: "Look at the definitions of agents and at what agents delegated, and act on continuable children",
		Long: "An agent definition is an entry under agents in a configuration file, or a file NAME.md in\n" +
			".offshoot/agents of the folder that is worked in or in agents beside the user's\n" +
			"configuration file: keys in YAML between two lines ---, and below them the persona. Each\n" +
			"becomes a tool subagent_NAME. With agents.claude: true in the configuration the files in\n" +
			".claude/agents of the folder and of the user, or in agents of $CLAUDE_CONFIG_DIR for the\n" +
			"user's, are read too.\n\n" +
			"What agents delegated, children tells of the stored logs. A continuable child among them takes\n" +
			"more work by send; wait, interrupt and close are for one that has work.",
	})
	cmd.AddCommand(newAgentsListCommand(a), newAgentsShowCommand(a), newAgentsCheckCommand(a), newAgentsChildrenCommand(a),
		newAgentsSendCommand(a), newAgentsWaitCommand(a), newAgentsInterruptCommand(a), newAgentsCloseCommand(a))
	return cmd
}
