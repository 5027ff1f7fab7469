package main

import (
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/dreamlab-ai/agentinit/supervisor/control/api"
)

func newSandbox(c *cli) *cobra.Command {
	cmd := &cobra.Command{Use: "sandbox", Short: "Try what the sandbox of a program refuses"}
	timeout := time.Minute
	test := &cobra.Command{
		Use:   "test PROGRAM -- COMMAND [ARG...]",
		Short: "Run a command in a program's sandbox and show what was refused",
		Long: `Run a command exactly as the program would be run: as its user, with its
environment, limits, guard and sandbox. The program itself is not touched. Show
the output of the command, its exit status, and the system calls that were
refused. Paths and ports that the sandbox forbids show as "Permission denied" in
the output, because the kernel tells only the command.

Exit status: 0 the command ended with 0 and nothing was refused, 1 otherwise,
2 wrong command line, 4 agentinit cannot be reached or there is no such program.`,
		Args: cobra.MinimumNArgs(2),
		ValidArgsFunction: func(cmd *cobra.Command, args []string, toComplete string) ([]string, cobra.ShellCompDirective) {
			if len(args) > 0 {
				return nil, cobra.ShellCompDirectiveDefault
			}
			return c.completeOne(cmd, args, toComplete)
		},
		RunE: func(cmd *cobra.Command, args []string) error {
			x, err := c.client().SandboxTest(cmd.Context(), api.SandboxTest{Program: args[0], Command: args[1:], TimeoutMS: timeout.Milliseconds()})
			if err != nil {
				return failed(err)
			}
			if c.json {
				err = c.printJSON(x)
			} else {
				c.printTrial(x)
			}
			if err == nil && (x.Status != 0 || len(x.Refused) > 0) {
				err = &exitError{code: exitFailure}
			}
			return err
		},
	}
	test.Flags().Var((*seconds)(&timeout), "timeout", "kill the command after this time, at most 10m")
	cmd.AddCommand(test)
	return cmd
}

func (c *cli) printTrial(x api.SandboxTestResult) {
	for text := range strings.Lines(x.Output) {
		line(c.stdout, "%s", printable(strings.TrimSuffix(text, "\n")))
	}
	if x.Truncated {
		line(c.stdout, "(the rest of the output is not shown)")
	}
	line(c.stdout, "exit status: %d", x.Status)
	if x.Skipped != "" {
		line(c.stdout, "not in force: %s", printable(x.Skipped))
	}
	for _, r := range x.Refused {
		line(c.stdout, "refused: %s", printable(r.String()))
	}
	if len(x.Refused) == 0 {
		line(c.stdout, "refused: no system call")
	}
}
