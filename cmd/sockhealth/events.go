// SPDX-License-Identifier: Apache-2.0

package main

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/sockhealth/sockhealth/internal/agent"
	"github.com/sockhealth/sockhealth/internal/api"
	"github.com/sockhealth/sockhealth/internal/verdict"
	"github.com/sockhealth/sockhealth/report"
)

// eventTime is how a line begins: fit for sorting, and for finding in a log.
const eventTime = "2006-01-02T15:04:05.000Z07:00"

func newEvents(e *env) *cobra.Command {
	var q api.EventQuery
	var peer, since string
	cmd := &cobra.Command{
		Use:   "events",
		Short: "Show verdicts, ends and stalls of connections",
		Long: fmt.Sprintf(`Show what happened last: every verdict of the agent, every connection that the
kernel ended by a bound, a reset or from outside, and every first retransmission
timeout of a stall. The agent keeps the last %[1]d, and besides them the last
%[1]d verdicts that something was done about. It needs root.

With --follow new ones are shown as they come, until SIGINT or the agent ends.
Each is one line; -o wide adds to a verdict what it was decided on, and -o json
writes one JSON object a line, from which the decision can be made again. Where
events were lost, because there were too many, stderr says how many.`, agent.JournalSize),
		Example: `  sudo sockhealth events --action closed -o wide
  sudo sockhealth events --follow --policy buffer --verdict dead_path
  sudo sockhealth events --since 10m --cookie 71
  sudo sockhealth events --follow -o json | jq 'select(.judgement.delivery == "unacknowledged")'`,
		Args: noArgs,
	}
	f := cmd.Flags()
	f.BoolVarP(&q.Follow, "follow", "f", false, "go on with new ones")
	f.StringVar(&q.Policy, "policy", "", "only those of the policy of this `NAME`")
	kind := addFilter(cmd, "kind", "only those of this `KIND`", api.EventKinds())
	word := addFilter(cmd, "verdict", "only those with this `VERDICT`", api.VerdictWords())
	action := addFilter(cmd, "action", "only verdicts that had this `ACTION`", api.ActionWords())
	reporter := addFilter(cmd, "reporter", "only verdicts that this `REPORTER` asked for", api.ReporterWords())
	f.StringVar(&peer, "peer", "", "only those with a peer in this `CIDR`, or of this address")
	f.Var(number[uint32]{&q.Netns}, "netns", "only those of the network namespace with this `INODE`")
	f.Var(number[uint64]{&q.Cookie}, "cookie", "only those of the connection with this SO_COOKIE, a `NUMBER`")
	f.StringVar(&q.Pod, "pod", "", "only those in the pod with this `UID`")
	f.StringVar(&q.Container, "container", "", "only those in the container with this `ID`, or one that begins so")
	f.StringVar(&since, "since", "", "only those after the event of this number, from this time on, or not older than this: `NUMBER|TIME|DURATION`, such as 71, 2006-01-02T15:04:05Z or 10m")
	runDir := f.String("run-dir", defaultRunDir, "`DIR` of the agent's sockets")
	output := addOutput(cmd, table, wide, asJSON)
	cmd.RunE = func(cmd *cobra.Command, _ []string) (err error) {
		q.Kind, q.Verdict, q.Action, q.Reporter = kind.value, word.value, action.value, reporter.value
		if q.Kind != "" && q.Kind != string(agent.EntryVerdict) && q.Verdict+q.Action+q.Reporter != "" {
			return usagef("--kind %s: give it without --verdict, --action and --reporter, which only verdicts have", q.Kind)
		}
		if peer != "" {
			if q.Peer, err = api.ParsePeer(peer); err != nil {
				return usagef("--peer %q: want an IP address or a prefix such as 10.20.0.0/16", peer)
			}
		}
		if since != "" {
			if err := q.ParseSince(since); err != nil {
				return usagef("--since %v", err)
			}
		}
		return followEvents(cmd.Context(), e, api.Dial(*runDir), q, output.value)
	}
	return cmd
}

// followEvents prints the events that are asked for.
func followEvents(ctx context.Context, e *env, from *api.Client, q api.EventQuery, output string) error {
	p := &eventPrinter{env: e, output: output, follow: q.Follow}
	err := from.Events(ctx, q, p.print)
	if p.lost > 0 {
		fmt.Fprintf(p.stderr, "sockhealth: %d events between these are not kept any more\n", p.lost)
	}
	if q.Follow && ctx.Err() != nil {
		return nil // whoever followed has seen enough
	}
	return err
}

// addFilter gives a command a flag that takes one word of a closed list.
func addFilter(cmd *cobra.Command, name, usage string, of []string) *filter {
	f := &filter{of: of}
	cmd.Flags().Var(f, name, usage+": "+alternatives(of))
	complete(cmd, name, of)
	return f
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
		return errors.New(f.want())
	}
	f.value = s
	return nil
}

func (f *filter) Type() string { return "string" }

func (f *filter) want() string { return alternatives(f.of) }

// eventPrinter prints each event as it comes.
type eventPrinter struct {
	*env
	output string
	follow bool
	lost   uint64 // not told yet
}

func (p *eventPrinter) print(e api.Event) (err error) {
	switch {
	case e.Lost > 0 && p.follow:
		fmt.Fprintf(p.stderr, "sockhealth: %d events were lost before number %d\n", e.Lost, e.Seq)
	default:
		p.lost += e.Lost
	}
	switch p.output {
	case asJSON:
		enc := json.NewEncoder(p.stdout)
		enc.SetEscapeHTML(false)
		err = enc.Encode(e)
	case wide:
		_, err = io.WriteString(p.stdout, eventLine(&e)+basisLines(&e))
	default:
		_, err = io.WriteString(p.stdout, eventLine(&e))
	}
	if err != nil {
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
	if v.Frozen != "" {
		fmt.Fprintf(b, ", not closed: %s", cmp.Or(agent.Freeze(v.Frozen).String(), v.Frozen))
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
	if ev.Delivery != "" {
		fmt.Fprintf(b, ", %s", delivery(ev))
	}
	fmt.Fprintf(b, ", call %s, took %s", ms(ev.CallMS), ms(ev.DurationMS))
}

// delivery says what became of the request.
func delivery(ev *report.Evidence) string {
	switch verdict.Delivery(ev.Delivery) {
	case verdict.NoRequest:
		return "no request since"
	case verdict.Unacknowledged:
		return fmt.Sprintf("request unacknowledged (%d bytes, %d of them unsent)", ev.Unacked, ev.Unsent)
	}
	return "request " + ev.Delivery
}

func endDetail(b *strings.Builder, end *api.EndEvent) {
	fmt.Fprintf(b, "  %s, received %d, acked %d", end.Direction, end.BytesReceived, end.BytesAcked)
	if end.Errno != "" {
		fmt.Fprintf(b, ", %s", end.Errno)
	}
}
