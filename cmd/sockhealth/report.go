// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"path/filepath"
	"strconv"
	"syscall"
	"time"

	"github.com/spf13/cobra"

	"github.com/sockhealth/sockhealth/internal/api"
	"github.com/sockhealth/sockhealth/internal/policy"
	"github.com/sockhealth/sockhealth/report"
)

// defaultRunDir is where the agent's sockets stand unless a flag says otherwise.
const defaultRunDir = "/run/sockhealth"

type reportOptions struct {
	peer, local, socket, runDir string
	cookie                      uint64
	elapsed                     time.Duration
	noWait                      bool
	judgement                   string // an id of an earlier report
	output                      *choice
}

func newReport(e *env) *cobra.Command {
	o := &reportOptions{}
	cmd := &cobra.Command{
		Use:   "report",
		Short: "Report that a call timed out, and print the verdict",
		Long: `Report to the agent that a call timed out on a connection of yours, wait for the
judgement and print it. A report never closes what the evidence does not condemn.

--local or --cookie names the connection; --peer alone means all of yours to that
peer, one line for each. They must belong to the user and the network namespace
that this command runs in. That there is no such connection is the verdict "gone",
or with --peer alone an empty list, and exit code 0.

With --no-wait the id of the judgement is printed at once; --judgement ID waits for
it and prints it, up to a minute after it is in.`,
		Example: `  sockhealth report --peer 10.20.1.2:7100 --local 10.1.1.1:40122 --elapsed 2s
  sockhealth report --peer 10.20.1.2:7100 --elapsed 2s
  sockhealth report --cookie 71 --elapsed 2s -o json
  id=$(sockhealth report --cookie 71 --no-wait) && sockhealth report --judgement "$id"`,
		Args: noArgs,
	}
	f := cmd.Flags()
	f.StringVar(&o.peer, "peer", "", "`ADDR:PORT` that the call was sent to")
	f.StringVar(&o.local, "local", "", "the connection's own `ADDR:PORT`")
	f.Var(number[uint64]{&o.cookie}, "cookie", "the connection's SO_COOKIE, a `NUMBER`")
	f.DurationVar(&o.elapsed, "elapsed", 0, "`TIME` since the call was written, up to 1h")
	f.BoolVar(&o.noWait, "no-wait", false, "print the id of the judgement and do not wait for it")
	f.StringVar(&o.judgement, "judgement", "", "wait for the judgement of this `ID`, which report --no-wait printed, and report nothing")
	f.StringVar(&o.runDir, "run-dir", defaultRunDir, "`DIR` of the agent's sockets")
	f.StringVar(&o.socket, "socket", "", "`PATH` of report.sock, in place of --run-dir")
	o.output = addOutput(cmd, table, wide, asJSON)
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		f := cmd.Flags()
		switch {
		case o.socket != "" && f.Changed("run-dir"):
			return usagef("give --socket or --run-dir, not both")
		case o.socket == "":
			o.socket = filepath.Join(o.runDir, api.ReportSocket)
		}
		if !f.Changed("judgement") {
			return o.run(cmd.Context(), e)
		}
		for _, other := range []string{"peer", "local", "cookie", "elapsed", "no-wait"} {
			if f.Changed(other) {
				return usagef("--judgement reports nothing: give it without --%s", other)
			}
		}
		return o.fetch(cmd.Context(), e)
	}
	return cmd
}

// run reports.
func (o *reportOptions) run(ctx context.Context, e *env) error {
	req, err := o.request()
	if err != nil {
		return err
	}
	client := &report.Client{Socket: o.socket}
	if o.noWait {
		id, err := client.Submit(ctx, req)
		if err != nil {
			return o.explain(err)
		}
		return o.printID(e, id)
	}
	resp, err := client.Report(ctx, req)
	if err != nil {
		return o.explain(err)
	}
	return o.print(e, resp)
}

// fetch prints the judgement of an earlier report.
func (o *reportOptions) fetch(ctx context.Context, e *env) error {
	resp, err := (&report.Client{Socket: o.socket}).Result(ctx, o.judgement)
	if err != nil {
		return o.explain(err)
	}
	return o.print(e, resp)
}

func (o *reportOptions) printID(e *env, id string) error {
	if o.output.value == asJSON {
		return writeJSON(e.stdout, struct {
			Schema int `json:"schema"`
			report.Pending
		}{schema, report.Pending{Judgement: id}})
	}
	if _, err := fmt.Fprintln(e.stdout, id); err != nil {
		return fmt.Errorf("write output: %w", err)
	}
	return nil
}

func (o *reportOptions) print(e *env, resp *report.Response) error {
	if len(resp.Results) == 0 {
		fmt.Fprintln(e.stderr, "sockhealth: this user has no connection to that peer in this network namespace")
	}
	if o.output.value == asJSON {
		return writeJSON(e.stdout, struct {
			Schema int `json:"schema"`
			*report.Response
		}{schema, resp})
	}
	return writeTable(e.stdout, reportRows(resp.Results, o.output.value == wide))
}

// request makes the report of the flags.
func (o *reportOptions) request() (report.Request, error) {
	if o.local == "" && o.cookie == 0 && o.peer == "" {
		return report.Request{}, usagef("which connection? give --local ADDR:PORT or --cookie NUMBER, or --peer ADDR:PORT for all to that peer")
	}
	for _, f := range []struct{ name, value string }{{"peer", o.peer}, {"local", o.local}} {
		if f.value == "" {
			continue
		}
		if _, err := policy.ParseService(f.value); err != nil {
			return report.Request{}, usagef("--%s %q: %v", f.name, f.value, err)
		}
	}
	if o.elapsed < 0 || o.elapsed > time.Hour {
		return report.Request{}, usagef("--elapsed %s: want 0 to 1h", o.elapsed)
	}
	return report.Request{
		Peer: o.peer, Local: o.local, Cookie: o.cookie,
		ElapsedMS: (o.elapsed + time.Millisecond - 1).Milliseconds(),
	}, nil
}

// explain turns an error of the report into one for whoever typed it.
func (o *reportOptions) explain(err error) error {
	var refused *report.StatusError
	switch {
	case errors.As(err, &refused) && refused.Status == http.StatusBadRequest:
		return usageError{err}
	case errors.Is(err, report.ErrUnreachable):
		return o.unreachable(err)
	}
	return err
}

// unreachable says in one sentence where no agent answers, and the remedy. It
// keeps the sentinels of err and drops the words.
func (o *reportOptions) unreachable(err error) error {
	why := err.Error()
	if errno := syscall.Errno(0); errors.As(err, &errno) {
		why = errno.Error()
	}
	start := "sockhealth run"
	if dir := filepath.Dir(o.socket); dir != defaultRunDir {
		start += " --run-dir " + dir
	}
	return reworded{
		error: fmt.Errorf("no agent answers at %s: %s [start one as root: %s]", o.socket, why, start),
		was:   err,
	}
}

// reworded is an error in other words.
type reworded struct {
	error
	was error
}

func (e reworded) Unwrap() error { return e.was }

// reportRows makes the table of a report's results.
func reportRows(results []report.Result, all bool) [][]string {
	head := []string{"LOCAL", "PEER", "POLICY", "VERDICT", "REASON", "ACTION", "TOOK"}
	if all {
		head = append(head, "COOKIE", "STATE", "PAYLOAD-SINCE", "IN-FLIGHT", "UNREAD", "RECEIVED", "ACKED",
			"LAST-DATA", "LAST-PACKET", "PROBES", "ANSWERED", "WINDOW", "APP", "CALL")
	}
	rows := [][]string{head}
	for i := range results {
		r := &results[i]
		ev := &r.Evidence
		row := []string{
			dash(r.Local), dash(r.Peer), dash(r.Policy), r.Verdict, dash(r.Reason), r.Action, ms(ev.DurationMS),
		}
		if all {
			row = append(row,
				strconv.FormatUint(r.Cookie, 10), dash(ev.State), yesNo(ev.PayloadSinceCall), yesNo(ev.InFlight),
				strconv.FormatUint(uint64(ev.Unread), 10), strconv.FormatUint(ev.BytesReceived, 10),
				strconv.FormatUint(ev.BytesAcked, 10), lastData(ev.BytesReceived, ev.LastDataMS), ms(ev.LastPacketMS),
				strconv.Itoa(ev.ProbesSent), yesNo(ev.ProbeAnswered), millis(ev.WindowMS), dash(ev.AppProbe), ms(ev.CallMS),
			)
		}
		rows = append(rows, row)
	}
	return rows
}

// ms writes a time that may well be 0.
func ms(n int64) string { return (time.Duration(n) * time.Millisecond).String() }
