// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"time"

	"github.com/spf13/cobra"

	"github.com/sockhealth/sockhealth/internal/api"
)

func newSockets(e *env) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "sockets",
		Short: "List the connections that the agent bounds, explain and probe one",
		Long: `List the connections that the agent bounds, in all the network namespaces that it
covers. It needs root.

IDLE-BOUND says how long after its peer's death an idle connection ends by the
options that it has now; IN-FLIGHT-BOUND (wide) says so for one that has sent
data. AGE (wide) of a connection that is older than the agent, or was made outside
its cgroup, is at least what it says (">"). CONTAINER and POD (wide) say where it lives, by its cgroup; a container's id
is shortened, with -o json it is whole. Connections without a policy are not listed.

With --unmanaged it lists, by a scan made now, the connections that the policy
names and that are not bounded as it wants, with the reason. A question mark behind
the direction says that it is a guess.

Where some connections may be missing from a list a message says why, and the exit
code is 1.`,
		Example: `  sudo sockhealth sockets
  sudo sockhealth sockets -o wide
  sudo sockhealth sockets --unmanaged
  sudo sockhealth sockets -o json | jq '.sockets[] | select(.in_flight)'
  sudo sockhealth sockets explain --cookie 71
  sudo sockhealth sockets probe 10.1.1.1:40122 10.20.1.2:7100`,
		Args: func(cmd *cobra.Command, args []string) error {
			if len(args) > 0 {
				return unknownCommand(cmd, args[0])
			}
			return nil
		},
	}
	cmd.AddCommand(newSocketsExplain(e), newSocketsProbe(e))
	runDir := cmd.Flags().String("run-dir", defaultRunDir, "`DIR` of the agent's sockets")
	unmanaged := cmd.Flags().Bool("unmanaged", false, "list those that the policy names and that are not bounded as it wants")
	output := addOutput(cmd, table, wide, asJSON)
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		if *unmanaged {
			return listUnmanaged(cmd.Context(), e, *runDir, output.value)
		}
		list, err := api.Dial(*runDir).Sockets(cmd.Context())
		if err != nil {
			return err
		}
		if output.value == asJSON {
			err = writeJSON(e.stdout, list)
		} else {
			err = writeTable(e.stdout, socketRows(list.Sockets, output.value == wide))
		}
		return errors.Join(err, missing(list.Incomplete))
	}
	return cmd
}

// missing is the error of a list that is not complete, nil where it is.
func missing(incomplete string) error {
	if incomplete == "" {
		return nil
	}
	return fmt.Errorf("the list is not complete: %s", incomplete)
}

// listUnmanaged prints the connections that are not bounded. Where some may be
// missing a message says so, and the exit code is that of a check that failed.
func listUnmanaged(ctx context.Context, e *env, runDir, output string) error {
	list, err := api.Dial(runDir).Unmanaged(ctx)
	if err != nil {
		return err
	}
	if output == asJSON {
		err = writeJSON(e.stdout, list)
	} else {
		err = writeTable(e.stdout, unmanagedRows(list.Sockets, output == wide))
	}
	return errors.Join(err, missing(list.Incomplete))
}

// socketRows makes the table of sockets.
func socketRows(list []api.Socket, all bool) [][]string {
	head := []string{"NETNS", "LOCAL", "PEER", "POLICY", "DIR", "STATE", "IDLE-BOUND", "LAST-PACKET"}
	if all {
		head = append(head, "IN-FLIGHT-BOUND", "COOKIE", "UID", "AGE", "LAST-DATA", "RECEIVED", "ACKED", "UNREAD",
			"IN-FLIGHT", "RETRANS", "PROBES", "GUARDED", "SET", "POLICED", "APP", "CONTAINER", "POD")
	}
	rows := [][]string{head}
	for i := range list {
		s := &list[i]
		row := []string{
			strconv.FormatUint(uint64(s.Netns), 10), s.Local, s.Peer, s.Policy, s.Direction, s.State,
			millis(s.IdleBoundMS), ms(s.LastPacketMS),
		}
		if all {
			row = append(row,
				millis(s.InFlightBoundMS), strconv.FormatUint(s.Cookie, 10), strconv.FormatUint(uint64(s.UID), 10),
				age(s), lastData(s.BytesReceived, s.LastDataMS), strconv.FormatUint(s.BytesReceived, 10),
				strconv.FormatUint(s.BytesAcked, 10), strconv.FormatUint(uint64(s.Unread), 10), yesNo(s.InFlight),
				strconv.Itoa(int(s.Retransmits)), strconv.Itoa(int(s.ProbesOut)), yesNo(s.Guarded),
				options(s.Options), options(s.Policed), options(s.App), dash(shortID(s.ContainerID)), dash(s.PodUID),
			)
		}
		rows = append(rows, row)
	}
	return rows
}

// age writes how long a connection is open: of one that was adopted, at least.
func age(s *api.Socket) string {
	if s.Adopted {
		return ">" + ms(s.AgeMS)
	}
	return ms(s.AgeMS)
}

// lastData writes when payload came, "-" where none did.
func lastData(bytes uint64, milliseconds int64) string {
	if bytes == 0 {
		return "-"
	}
	return ms(milliseconds)
}

// shortID writes a container's id as runtimes list it, and names as they are.
func shortID(id string) string {
	if len(id) == 64 {
		return id[:12]
	}
	return id
}

// options writes the options in one word: keepalive idle/interval/count, user
// timeout, and the limit of the retransmission timeout where there is one. "-" stands for none, 0 for what is not set.
func options(o api.SocketOptions) string {
	if o == (api.SocketOptions{}) {
		return "-"
	}
	keepalive := "off"
	if o.KeepAlive {
		keepalive = "on"
	}
	text := fmt.Sprintf("%s,%d/%d/%d,%s", keepalive, o.IdleS, o.IntervalS, o.Count,
		time.Duration(o.UserTimeoutMS)*time.Millisecond)
	if o.RTOMaxMS > 0 {
		text += ",rto " + (time.Duration(o.RTOMaxMS) * time.Millisecond).String()
	}
	return text
}
