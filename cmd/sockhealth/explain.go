// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"time"

	"github.com/spf13/cobra"

	"github.com/sockhealth/sockhealth/internal/api"
	"github.com/sockhealth/sockhealth/internal/conn"
	"github.com/sockhealth/sockhealth/internal/policy"
)

func newPolicyExplain(e *env) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "explain ADDR:PORT",
		Short: "Say what a policy does for one address and port",
		Long: `Say what a policy does for one address and service port: which entry is in
force, and in seconds how long a dead connection lives, how long an outage is
survived with and without a report, and how many lost probes are forgiven.

The port is the service's: the remote one of outbound connections, the local one
of inbound connections. With in_flight: rto_cap or auto the figures are those of this
machine's kernel, and of net.ipv4.tcp_retries2 of the network namespace that this is
run in.`,
		Example: `  sockhealth policy explain 10.20.1.2:7100
  sockhealth policy explain --policy policy.yaml --direction inbound [fd00:20::2]:7100
  sockhealth policy explain -o json 10.20.1.2:7100`,
		Args: func(cmd *cobra.Command, args []string) error {
			if len(args) != 1 {
				return fmt.Errorf("%s takes one ADDR:PORT, got %d arguments", cmd.CommandPath(), len(args))
			}
			return nil
		},
	}
	file := cmd.Flags().String("policy", defaultPolicy, "policy `FILE`, - for stdin")
	direction := &choice{value: "both", of: []string{"outbound", "inbound", "both"}}
	cmd.Flags().Var(direction, "direction", "explain connections of this direction")
	complete(cmd, "direction", direction.of)
	output := addOutput(cmd, table, asJSON)
	cmd.RunE = func(_ *cobra.Command, args []string) error {
		service, err := policy.ParseService(args[0])
		if err != nil {
			return usagef("explain %q: %v", args[0], err)
		}
		pol, _, err := readPolicy(e, *file)
		if err != nil {
			return err
		}
		x := pol.ExplainOn(groundHere(), service, directions(direction.value)...)
		if output.value == asJSON {
			return writeJSON(e.stdout, explanation(pol, &x))
		}
		if _, err := fmt.Fprintln(e.stdout, x); err != nil {
			return fmt.Errorf("write output: %w", err)
		}
		return nil
	}
	return cmd
}

// directions of a word of --direction.
func directions(word string) []conn.Direction {
	switch word {
	case "outbound":
		return []conn.Direction{conn.Outbound}
	case "inbound":
		return []conn.Direction{conn.Inbound}
	}
	return []conn.Direction{conn.Outbound, conn.Inbound}
}

// explanationJSON is what policy explain -o json prints.
type explanationJSON struct {
	Schema   int    `json:"schema"`
	File     string `json:"file"`
	Revision string `json:"revision"`
	Service  string `json:"service"`
	// Limits are closes a second by judgement.
	Limits  limitsJSON   `json:"limits"`
	Answers []answerJSON `json:"answers"`
}

// limitsJSON are to one address, and on the node.
type limitsJSON struct {
	PerPeer int `json:"closes_per_second_per_peer"`
	PerNode int `json:"closes_per_second_per_node"`
}

// answerJSON is one direction. Without a policy only Near is set.
type answerJSON struct {
	Direction string       `json:"direction"`
	Policy    string       `json:"policy,omitempty"`
	CIDR      string       `json:"cidr,omitempty"`
	Line      int          `json:"line,omitempty"`
	Options   *optionsJSON `json:"options,omitempty"`
	Probe     *probeJSON   `json:"probe,omitempty"`
	Figures   *api.Figures `json:"figures,omitempty"`
	Near      []nearJSON   `json:"near,omitempty"`
}

type optionsJSON struct {
	IdleS         int64 `json:"idle_s"`
	IntervalS     int64 `json:"interval_s"`
	Count         int   `json:"count"`
	UserTimeoutMS int64 `json:"user_timeout_ms"`
	// RTOMaxMS is TCP_RTO_MAX_MS; where it is not 0 the user timeout is not set.
	RTOMaxMS int64 `json:"rto_max_ms,omitempty"`
}

type probeJSON struct {
	WindowMS int64 `json:"window_ms"`
	Attempts int   `json:"attempts"`
}

// nearJSON is an entry that names the address and does not match all the same.
type nearJSON struct {
	Policy string `json:"policy"`
	CIDR   string `json:"cidr"`
	Line   int    `json:"line"`
	Why    string `json:"why"`
}

func explanation(pol *policy.Policy, x *policy.Explanation) explanationJSON {
	out := explanationJSON{Schema: schema, File: x.File, Revision: pol.Revision, Service: x.Service.String(),
		Limits: limitsJSON(x.Limits)}
	for i := range x.Answers {
		out.Answers = append(out.Answers, answer(x.Ground, &x.Answers[i]))
	}
	return out
}

func answer(g policy.Ground, a *policy.Answer) answerJSON {
	out := answerJSON{Direction: a.Direction.String()}
	for _, n := range a.NearMisses {
		out.Near = append(out.Near, nearJSON{Policy: n.Peer.Name, CIDR: n.CIDR.Prefix.String(), Line: n.CIDR.Line, Why: n.Why})
	}
	if a.Peer == nil {
		return out
	}
	o := a.Peer.Wanted(g.RTOCap)
	out.Policy, out.CIDR, out.Line = a.Peer.Name, a.CIDR.Prefix.String(), a.CIDR.Line
	out.Options = &optionsJSON{
		IdleS: int64(o.Idle / time.Second), IntervalS: int64(o.Interval / time.Second),
		Count: o.Count, UserTimeoutMS: o.UserTimeout.Milliseconds(), RTOMaxMS: o.RTOMax.Milliseconds(),
	}
	out.Probe = &probeJSON{WindowMS: a.Peer.Probe.Window.Milliseconds(), Attempts: a.Peer.Probe.Attempts}
	figures := api.NewFigures(&a.Figures)
	out.Figures = &figures
	return out
}
