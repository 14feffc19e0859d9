// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"

	"github.com/spf13/cobra"

	"github.com/sockhealth/sockhealth/internal/demo"
)

// errNotHeld says that the demo did not show what it should.
var errNotHeld = errors.New("some figures did not hold")

func newDemo(e *env) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "demo",
		Short: "Play the incidents that sockhealth ends, on this machine",
		Long: `Play two incidents on this machine, side by side, with real processes and real
sockets in network namespaces and cgroups of the demo's own. The pool: a client's
pooled connections to a peer that died, without an agent, with bounds, and with
timeout reports. The call: a call timed out, and the agent has to tell dead peers
from slow ones, socket by socket. It takes less than two minutes, the call alone
less than half of one, touches nothing else and leaves nothing behind, also when
it is interrupted.

The tables on stdout show what happened beside what is required. The
exit code is 0 if every figure holds and 1 otherwise. It needs root.`,
		Example: `  sudo sockhealth demo
  sudo sockhealth demo --incident call
  sudo sockhealth demo -o json >result.json`,
		Args: noArgs,
	}
	output := addOutput(cmd, table, asJSON)
	incident := &choice{of: demo.Incidents()}
	cmd.Flags().Var(incident, "incident", "play only this one, not both")
	complete(cmd, "incident", demo.Incidents())
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		opts := demo.Options{Exe: e.exe, Out: e.stderr}
		if incident.value != "" {
			opts.Incidents = []string{incident.value}
		}
		result, err := demo.Run(cmd.Context(), opts)
		if err != nil {
			return err
		}
		write := demo.WriteTable
		if output.value == asJSON {
			write = demo.WriteJSON
		}
		if err := write(e.stdout, result); err != nil {
			return err
		}
		if !result.Held() {
			return errNotHeld
		}
		return nil
	}
	return cmd
}

// newDemoProcesses are the commands of the processes that the demo starts.
func newDemoProcesses() []*cobra.Command {
	var out []*cobra.Command
	for _, p := range []struct {
		name, short string
		main        func(context.Context, []string) error
	}{
		{demo.ClientCommand, "Play the demo's client", demo.Client},
		{demo.PeerCommand, "Play the demo's peer", demo.Peer},
		{demo.JanitorCommand, "Clean up after a demo that was killed", demo.Janitor},
	} {
		out = append(out, &cobra.Command{
			Use: p.name, Short: p.short, Hidden: true,
			Long:               p.short + ". The demo starts this process; it is of no use by itself.",
			Example:            "  sudo sockhealth demo",
			DisableFlagParsing: true, // they have a way of their own
			RunE: func(cmd *cobra.Command, args []string) error {
				return p.main(cmd.Context(), args)
			},
		})
	}
	return out
}
