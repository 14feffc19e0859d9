// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"io"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/sockhealth/sockhealth/internal/api"
	"github.com/sockhealth/sockhealth/internal/doctor"
)

func newStatus(e *env) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "status",
		Short: "Show how the agent is",
		Long: `Show how the agent is: what it runs on, the policy in force, what this kernel
gives it, the totals of each policy, and what went wrong. It needs root.

health is ok or degraded; what is degraded is told in the lines that begin with
"problem". The exit code is 0 for both: the question was answered.

COVERAGE is how many of the open connections that a policy names are bounded as it
wants, by a scan of its own every five minutes; UNMANAGED says why the others are
not, and "sockhealth sockets --unmanaged" lists them.`,
		Example: `  sudo sockhealth status
  sudo sockhealth status -o json | jq .health`,
		Args: noArgs,
	}
	runDir := cmd.Flags().String("run-dir", defaultRunDir, "`DIR` of the agent's sockets")
	output := addOutput(cmd, table, asJSON)
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		s, err := api.Dial(*runDir).Status(cmd.Context())
		if err != nil {
			return err
		}
		if output.value == asJSON {
			return writeJSON(e.stdout, s)
		}
		return printStatus(e.stdout, s, time.Now())
	}
	return cmd
}

// printStatus writes the status for people.
func printStatus(w io.Writer, s *api.Status, now time.Time) error {
	rows := [][]string{{"health", s.Health}}
	for _, p := range s.Problems {
		rows = append(rows, []string{"problem", p})
	}
	if s.Policy.Error != "" {
		rows = append(rows, []string{"problem", "the policy file as it is now was refused, the older one stays:"})
		for line := range strings.Lines(s.Policy.Error) {
			rows = append(rows, []string{"", strings.TrimSuffix(line, "\n")})
		}
	}
	rows = append(rows,
		[]string{"version", s.Version},
		[]string{"process", fmt.Sprintf("%d, up %s", s.PID, now.Sub(s.Started).Round(time.Second))},
		[]string{"kernel", s.Kernel},
		[]string{"policy", fmt.Sprintf("%s, revision %s, since %s", s.Policy.File, s.Policy.Revision,
			s.Policy.Loaded.Local().Format(time.RFC3339))},
		[]string{"cgroup", s.Cgroup},
		[]string{"programs", dash(strings.Join(s.Programs, ", "))},
		[]string{"namespaces", dash(strings.Join(s.Netns, ", "))},
		[]string{"judgements", fmt.Sprintf("%d under way, %d closes deferred", s.Judgements, s.Deferred)},
		[]string{"faults", faults(s)},
		[]string{"events lost", strconv.FormatUint(s.EventsDropped, 10)},
	)
	rows = append(rows, coverageRows(s, now)...)
	if err := writeTable(w, rows); err != nil {
		return err
	}
	if _, err := fmt.Fprintln(w); err != nil {
		return fmt.Errorf("write output: %w", err)
	}
	if err := writeTable(w, peerRows(s.Peers)); err != nil {
		return err
	}
	if _, err := fmt.Fprintln(w); err != nil {
		return fmt.Errorf("write output: %w", err)
	}
	return writeTable(w, featureRows(s.Features))
}

// featureRows makes the table of what the agent stands on, as doctor's.
func featureRows(features []api.Feature) [][]string {
	checks := make([]doctor.Check, len(features))
	for i, f := range features {
		checks[i] = doctor.Check{Name: f.Name, Status: doctor.Status(f.Status), Detail: f.Detail, Lost: f.Lost, Remedy: f.Remedy}
	}
	return checkRows(checks)
}

// faults writes those since the start, and what was before.
func faults(s *api.Status) string {
	text := counts(s.Faults)
	if len(s.FaultsBefore) > 0 {
		text += ", before this start " + counts(s.FaultsBefore)
	}
	return text
}

// peerRows makes the table of policies.
func peerRows(peers []api.PolicyStatus) [][]string {
	rows := [][]string{{"POLICY", "OPENED", "ADOPTED", "CLOSED", "OPEN", "COVERAGE", "PENDING", "GUARDED", "UNMANAGED", "DRIFT", "STALE", "VERDICTS"}}
	for i := range peers {
		p := &peers[i]
		came, gone := p.Opened+p.Adopted, p.Closed+p.Released
		rows = append(rows, []string{
			p.Name, strconv.FormatUint(p.Opened, 10), strconv.FormatUint(p.Adopted, 10), strconv.FormatUint(p.Closed, 10),
			strconv.FormatUint(came-min(came, gone), 10), percent(p.Bounded, p.Expected), counts(p.Pending), strconv.FormatUint(p.Guarded, 10), counts(p.Unmanaged),
			counts(map[string]uint64{"found": p.DriftFound, "repaired": p.DriftRepaired}), counts(p.Stale), counts(p.Verdicts),
		})
	}
	return rows
}

// counts writes the figures that are not 0, "none" without one.
func counts(m map[string]uint64) string {
	var parts []string
	for _, name := range slices.Sorted(maps.Keys(m)) {
		if m[name] != 0 {
			parts = append(parts, fmt.Sprintf("%s=%d", name, m[name]))
		}
	}
	if len(parts) == 0 {
		return "none"
	}
	return strings.Join(parts, " ")
}
