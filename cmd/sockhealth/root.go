// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"strings"

	"github.com/spf13/cobra"
	"golang.org/x/sys/unix"

	"github.com/sockhealth/sockhealth/internal/policy"
)

// hangupReloads is the annotation of a command that SIGHUP does not end.
const hangupReloads = "hangup-reloads"

// execute runs the command that e.args name and returns its exit code. SIGINT,
// SIGTERM and SIGHUP end it in good order; a second one ends it at once.
func execute(ctx context.Context, e *env) int { return executeIn(ctx, e, newRoot(e)) }

// executeIn is execute in a tree of commands.
func executeIn(ctx context.Context, e *env, root *cobra.Command) int {
	ctx, stop := endOn(ctx, unix.SIGINT, unix.SIGTERM)
	defer stop()

	// What fails before a command starts is the command line.
	started := false
	stopHangup := func() {}
	defer func() { stopHangup() }()
	root.PersistentPreRunE = func(cmd *cobra.Command, _ []string) error {
		if err := noEmpty(cmd); err != nil {
			return err
		}
		started = true
		if _, reloads := cmd.Annotations[hangupReloads]; reloads || signal.Ignored(unix.SIGHUP) { // as under nohup(1)
			return nil
		}
		ctx, stop := endOn(cmd.Context(), unix.SIGHUP)
		stopHangup = stop
		cmd.SetContext(ctx)
		return nil
	}
	root.SetArgs(e.args)
	cmd, err := root.ExecuteContextC(ctx)
	if err != nil && !started {
		err = usageError{err}
	}
	defer func() {
		if e.flush != nil {
			e.flush()
		}
	}()
	code := exitCode(err)
	var mistakes *policy.Errors
	switch {
	case err == nil, errors.Is(err, errSaid):
	case errors.As(err, &mistakes): // each begins with its file
		fmt.Fprintln(e.stderr, mistakes)
	default:
		fmt.Fprintf(e.stderr, "sockhealth: %v\n", err)
	}
	if code == exitUsage {
		fmt.Fprintf(e.stderr, "Run '%s --help' for usage.\n", cmd.CommandPath())
	}
	return code
}

// endOn returns a context that the first of these signals ends; the second one
// does what it does to any process.
func endOn(ctx context.Context, signals ...os.Signal) (context.Context, context.CancelFunc) {
	ctx, stop := signal.NotifyContext(ctx, signals...)
	context.AfterFunc(ctx, stop)
	return ctx, stop
}

// newRoot builds the tree of commands.
func newRoot(e *env) *cobra.Command {
	root := &cobra.Command{
		Use:   "sockhealth",
		Short: "See to it that no TCP connection stays dead without anyone noticing",
		Long: `sockhealth bounds every TCP connection between this node and the peers of its
policy, judges a connection on evidence when a call on it timed out, and closes
exactly the dead ones.

Data goes to stdout, messages go to stderr. Exit codes: 0 ok, 1 a check failed or
the policy is bad, 2 usage, 3 agent unreachable, 4 privilege or kernel feature
missing.`,
		Example: `  sudo sockhealth doctor
  sudo sockhealth demo
  sockhealth policy check /etc/sockhealth/policy.yaml
  sudo sockhealth run --policy /etc/sockhealth/policy.yaml
  sudo sockhealth status`,
		SilenceErrors: true,
		SilenceUsage:  true,
	}
	root.SetIn(e.stdin)
	root.SetOut(e.stdout)
	root.SetErr(e.stderr)
	root.SetFlagErrorFunc(flagError)
	root.AddCommand(
		newRun(e), newDemo(e), newReport(e), newSockets(e), newEvents(e), newStatus(e), newReload(e),
		newDetach(e), newDoctor(e), newPolicy(e), newVersion(e), newCanary(e),
	)
	root.AddCommand(newDemoProcesses()...)
	root.SetHelpCommand(newHelp(root))
	root.InitDefaultHelpCmd()
	root.InitDefaultCompletionCmd()
	nameCompletions(root)
	groups(root)
	return root
}

// groups makes a command that only holds others refuse those it has not.
func groups(cmd *cobra.Command) {
	for _, sub := range cmd.Commands() {
		groups(sub)
	}
	if !cmd.HasSubCommands() || cmd.Runnable() {
		return
	}
	cmd.Args = cobra.ArbitraryArgs
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		if len(args) == 0 {
			return cmd.Help()
		}
		return unknownCommand(cmd, args[0])
	}
}

func unknownCommand(parent *cobra.Command, name string) error {
	parent.SuggestionsMinimumDistance = 2
	hint := ""
	if similar := parent.SuggestionsFor(name); len(similar) > 0 {
		hint = fmt.Sprintf(", did you mean %s?", strings.Join(similar, " or "))
	}
	return usagef("unknown command %q for %q%s", name, parent.CommandPath(), hint)
}

// newHelp is cobra's own help command with an exit code for what is unknown.
func newHelp(root *cobra.Command) *cobra.Command {
	return &cobra.Command{
		Use:     "help [COMMAND]",
		Short:   "Show the help of a command",
		Long:    "Show the help of a command, as its --help does.",
		Example: "  sockhealth help policy explain",
		RunE: func(_ *cobra.Command, args []string) error {
			cmd, rest, err := root.Find(args)
			if err != nil {
				return usageError{err}
			}
			if len(rest) > 0 {
				return unknownCommand(cmd, rest[0])
			}
			cmd.InitDefaultHelpFlag()
			return cmd.Help()
		},
	}
}

// nameCompletions gives cobra's completion commands what ours have.
func nameCompletions(root *cobra.Command) {
	for _, cmd := range root.Commands() {
		if cmd.Name() != "completion" {
			continue
		}
		cmd.Example = "  source <(sockhealth completion bash)"
		for _, shell := range cmd.Commands() {
			shell.Example = fmt.Sprintf("  sockhealth completion %s", shell.Name())
		}
	}
}

// noArgs refuses arguments in words of this program.
func noArgs(cmd *cobra.Command, args []string) error {
	if len(args) > 0 {
		return fmt.Errorf("%s takes no arguments, got %q", cmd.CommandPath(), args[0])
	}
	return nil
}
