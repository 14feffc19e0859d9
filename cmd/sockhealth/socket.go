// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"net/netip"

	"github.com/spf13/cobra"

	"github.com/sockhealth/sockhealth/internal/api"
	"github.com/sockhealth/sockhealth/internal/conn"
	"github.com/sockhealth/sockhealth/internal/policy"
	"github.com/sockhealth/sockhealth/report"
)

// oneSocket are the arguments and flags that name one socket.
type oneSocket struct {
	cookie uint64
	netns  uint32
	runDir string
	output *choice
}

// addOneSocket gives a command what names one socket.
func addOneSocket(cmd *cobra.Command) *oneSocket {
	o := &oneSocket{}
	f := cmd.Flags()
	f.Var(number[uint64]{&o.cookie}, "cookie", "the connection's SO_COOKIE, a `NUMBER`")
	f.Var(number[uint32]{&o.netns}, "netns", "`INODE` of its network namespace, as in the list; needed where several have such a connection")
	f.StringVar(&o.runDir, "run-dir", defaultRunDir, "`DIR` of the agent's sockets")
	cmd.Args = func(cmd *cobra.Command, args []string) error {
		if len(args) > 2 {
			return fmt.Errorf("%s takes LOCAL and PEER, got %d arguments", cmd.CommandPath(), len(args))
		}
		return nil
	}
	return o
}

// id is the socket that the command line names.
func (o *oneSocket) id(args []string) (conn.ID, error) {
	id := conn.ID{Cookie: o.cookie, Netns: o.netns}
	if len(args) == 0 && id.Cookie == 0 {
		return conn.ID{}, usagef("which connection? give LOCAL and PEER, or --cookie NUMBER")
	}
	for i, to := range []*netip.AddrPort{&id.Local, &id.Remote} {
		if i >= len(args) {
			break
		}
		ap, err := policy.ParseService(args[i])
		if err != nil {
			return conn.ID{}, usagef("%q: %v", args[i], err)
		}
		*to = netip.AddrPortFrom(ap.Addr().Unmap().WithZone(""), ap.Port())
	}
	if id.Local.IsValid() && id.Remote.IsValid() && id.Local.Addr().Is4() != id.Remote.Addr().Is4() {
		return conn.ID{}, usagef("%s and %s are of different address families", id.Local, id.Remote)
	}
	return id, nil
}

func newSocketsExplain(e *env) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "explain [LOCAL [PEER]]",
		Short: "Say everything about one connection",
		Long: `Say everything about one connection: which policy is in force on it, or why none
is, what its options are and who set them, how it does, and how long it would
live if its peer died now. It needs root.

LOCAL and PEER are ADDR:PORT, as the list has them; LOCAL alone, or --cookie, will
do where that names one connection.`,
		Example: `  sudo sockhealth sockets explain 10.1.1.1:40122 10.20.1.2:7100
  sudo sockhealth sockets explain --cookie 71
  sudo sockhealth sockets explain --netns 4026532281 10.1.1.1:40122 -o json`,
	}
	o := addOneSocket(cmd)
	o.output = addOutput(cmd, table, asJSON)
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		id, err := o.id(args)
		if err != nil {
			return err
		}
		x, err := api.Dial(o.runDir).Explain(cmd.Context(), id)
		if err != nil {
			return err
		}
		if o.output.value == asJSON {
			return writeJSON(e.stdout, x)
		}
		return writeTable(e.stdout, explanationRows(x))
	}
	return cmd
}

func newSocketsProbe(e *env) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "probe [LOCAL [PEER]]",
		Short: "Probe one connection and print the verdict; close nothing",
		Long: `Probe one connection, as the agent would if a call on it had timed out just now,
and print the verdict with its evidence. Nothing is closed, whatever the verdict,
and the siblings are not asked. It needs root.

LOCAL and PEER are ADDR:PORT, as the list has them; LOCAL alone, or --cookie, will
do where that names one connection.`,
		Example: `  sudo sockhealth sockets probe 10.1.1.1:40122 10.20.1.2:7100
  sudo sockhealth sockets probe --cookie 71 -o wide`,
	}
	o := addOneSocket(cmd)
	o.output = addOutput(cmd, table, wide, asJSON)
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		id, err := o.id(args)
		if err != nil {
			return err
		}
		p, err := api.Dial(o.runDir).Probe(cmd.Context(), id)
		if err != nil {
			return err
		}
		if o.output.value == asJSON {
			return writeJSON(e.stdout, p)
		}
		return writeTable(e.stdout, reportRows([]report.Result{p.Result}, o.output.value == wide))
	}
	return cmd
}
