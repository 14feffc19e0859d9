// SPDX-License-Identifier: Apache-2.0

package main

import (
	"encoding/json"
	"fmt"
	"io"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/sockhealth/sockhealth/internal/agent"
	"github.com/sockhealth/sockhealth/internal/api"
	"github.com/sockhealth/sockhealth/internal/verdict"
)

// eventTime is how a line begins: fit for sorting, and for finding in a log.
const eventTime = "2006-01-02T15:04:05.000Z07:00"

func newEvents(e *env) *cobra.Command {
	var q api.EventQuery
	var peer string
	cmd := &cobra.Command{
		Use:   "events",
		Short: "Show verdicts, ends and stalls of connections",
		Long: `Show what happened last: every verdict of the agent, every connection that the
kernel ended by a bound, a reset or from outside, and every first retransmission
timeout of a stall. The agent keeps the last 1,024. It needs root.

With --follow new ones are shown as they come, until SIGINT or the agent ends.
Each is one line; with -o json one JSON object a line. Where events were lost,
because there were too many, a line on stderr says how many.`,
		Example: `  sudo sockhealth events
  sudo sockhealth events --follow --policy buffer --verdict dead_path
  sudo sockhealth events --follow -o json | jq 'select(.judgement.action == "closed")'`,
		Args: noArgs,
	}
	f := cmd.Flags()
	f.BoolVarP(&q.Follow, "follow", "f", false, "go on with new ones")
	f.StringVar(&q.Policy, "policy", "", "only those of the policy of this `NAME`")
	kind := &filter{of: []string{string(agent.EntryVerdict), string(agent.EntryEnd), string(agent.EntryStall)}}
	f.Var(kind, "kind", "only those of this `KIND`: "+alternatives(kind.of))
	complete(cmd, "kind", kind.of)
	word := &filter{}
	for _, w := range verdict.Words() {
		word.of = append(word.of, string(w))
	}
	f.Var(word, "verdict", "only those with this `VERDICT`: "+alternatives(word.of))
	complete(cmd, "verdict", word.of)
	f.StringVar(&peer, "peer", "", "only those with a peer in this `CIDR`, or of this address")
	f.Uint32Var(&q.Netns, "netns", 0, "only those of the network namespace with this `INODE`")
	f.Uint64Var(&q.Since, "since", 0, "only those after the one of this `NUMBER`")
	runDir := f.String("run-dir", defaultRunDir, "`DIR` of the agent's sockets")
	output := addOutput(cmd, table, asJSON)
	cmd.RunE = func(cmd *cobra.Command, _ []string) (err error) {
		q.Kind, q.Verdict = kind.value, word.value
		if peer != "" {
			if q.Peer, err = api.ParsePeer(peer); err != nil {
				return usagef("--peer %q: want an IP address or a prefix such as 10.20.0.0/16", peer)
			}
		}
		p := &eventPrinter{env: e, json: output.value == asJSON}
		err = api.Dial(*runDir).Events(cmd.Context(), q, p.print)
		if q.Follow && cmd.Context().Err() != nil {
			return nil // whoever followed has seen enough
		}
		return err
	}
	return cmd
}

// filter is a flag with a closed list of values and none by default.
type filter struct {
	value string
	of    []string
}

// String, Set and Type make it a pflag.Value.
func (f *filter) String() string { return f.value }

func (f *filter) Set(s string) error {
	if !slices.Contains(f.of, s) {
		return fmt.Errorf("want %s", alternatives(f.of))
	}
	f.value = s
	return nil
}

func (f *filter) Type() string { return "string" }

// eventPrinter prints each event as it comes.
type eventPrinter struct {
	*env
	json bool
}

func (p *eventPrinter) print(e api.Event) error {
	if e.Lost > 0 {
		fmt.Fprintf(p.stderr, "sockhealth: %d events were lost before number %d\n", e.Lost, e.Seq)
	}
	if p.json {
		enc := json.NewEncoder(p.stdout)
		enc.SetEscapeHTML(false)
		if err := enc.Encode(e); err != nil {
			return fmt.Errorf("write output: %w", err)
		}
		return nil
	}
	if _, err := io.WriteString(p.stdout, eventLine(&e)); err != nil {
		return fmt.Errorf("write output: %w", err)
	}
	return nil
}

// eventLine writes an event for people.
func eventLine(e *api.Event) string {
	b := &strings.Builder{}
	fmt.Fprintf(b, "%s  #%d  %-7s  %s", e.Time.Local().Format(eventTime), e.Seq, e.Kind, what(e))
	fmt.Fprintf(b, "  %s  %s -> %s  cookie %d netns %d", dash(e.Policy), dash(e.Local), dash(e.Peer), e.Cookie, e.Netns)
	if e.ContainerID != "" {
		fmt.Fprintf(b, " container %s", shortID(e.ContainerID))
	}
	if e.PodUID != "" {
		fmt.Fprintf(b, " pod %s", e.PodUID)
	}
	switch {
	case e.Verdict != nil:
		verdictDetail(b, e.Verdict)
	case e.End != nil:
		endDetail(b, e.End)
	}
	b.WriteByte('\n')
	return b.String()
}

// what is the word of an event: the verdict and what was done, or the cause.
func what(e *api.Event) string {
	switch {
	case e.Verdict != nil && e.Verdict.Reason != "":
		return fmt.Sprintf("%s (%s), %s", e.Verdict.Verdict, e.Verdict.Reason, e.Verdict.Action)
	case e.Verdict != nil:
		return fmt.Sprintf("%s, %s", e.Verdict.Verdict, e.Verdict.Action)
	case e.End != nil && e.Kind == string(agent.EntryEnd):
		return e.End.Cause
	}
	return "no answer to the last send"
}

func verdictDetail(b *strings.Builder, v *api.VerdictEvent) {
	ev := &v.Evidence
	fmt.Fprintf(b, "  asked by %s", v.Reporter)
	if v.PID != 0 {
		fmt.Fprintf(b, " (pid %d, user %d)", v.PID, v.UID)
	}
	if ev.ProbesSent > 0 {
		answered := "unanswered"
		if ev.ProbeAnswered {
			answered = "answered"
		}
		fmt.Fprintf(b, ", %d probes %s", ev.ProbesSent, answered)
	}
	if ev.AppProbe != "" {
		fmt.Fprintf(b, ", application %s", strings.ReplaceAll(ev.AppProbe, "_", " "))
	}
	fmt.Fprintf(b, ", call %s, took %s", ms(ev.CallMS), ms(ev.DurationMS))
}

func endDetail(b *strings.Builder, end *api.EndEvent) {
	fmt.Fprintf(b, "  %s, received %d, acked %d", end.Direction, end.BytesReceived, end.BytesAcked)
	if end.Errno != "" {
		fmt.Fprintf(b, ", %s", end.Errno)
	}
}
