// SPDX-License-Identifier: Apache-2.0

package main

import (
	"errors"
	"fmt"

	"github.com/spf13/cobra"

	"github.com/sockhealth/sockhealth/internal/doctor"
)

// The errors of doctor; what is behind them stands in its output.
var (
	errDegraded = errors.New("this machine gives the agent less than all")
	errMissing  = errors.New("this machine cannot run the agent")
)

func newDoctor(e *env) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "doctor",
		Short: "Find out what this machine gives the agent",
		Long: `Find out what this machine gives the agent, by doing each thing once: the kernel,
BTF, each capability, cgroup v2, the BPF programs, and on a connection of its own
the look, the walks, the raw probe and the close. It needs no running agent and
touches nothing of the host: nothing is attached, and the connection stands in a
network namespace that is gone afterwards.

Each check works, is degraded (the agent runs without it, and what is lost is
told), or missing (the agent does not run), with a remedy. One that does not work
but would do only what another does is unneeded. A check that needs what is missing
already is untested. The exit code is 0 if all works, 1 if something is
degraded, 4 if something is missing. Run it as the agent would be run: as root.`,
		Example: `  sudo sockhealth doctor
  sudo sockhealth doctor -o json | jq '.checks[] | select(.status != "works")'`,
		Args: noArgs,
	}
	output := addOutput(cmd, table, asJSON)
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		checks, err := doctor.Examine(cmd.Context())
		if err != nil {
			return err
		}
		worst := doctor.Worst(checks)
		if output.value == asJSON {
			err = writeJSON(e.stdout, diagnosis(checks, worst))
		} else {
			err = writeTable(e.stdout, checkRows(checks))
		}
		if err != nil {
			return err
		}
		return lacks(worst)
	}
	return cmd
}

// lacks is the error of a command that has shown this status.
func lacks(worst doctor.Status) error {
	switch worst {
	case doctor.Missing:
		return errMissing
	case doctor.Degraded:
		return errDegraded
	}
	return nil
}

// checkRows makes the table of checks. What is lost and what helps stands below
// its check.
func checkRows(checks []doctor.Check) [][]string {
	rows := [][]string{{"STATUS", "CHECK", "FOUND"}}
	for i := range checks {
		c := &checks[i]
		rows = append(rows, []string{string(c.Status), c.Name, c.Detail})
		if c.Lost != "" {
			rows = append(rows, []string{"", "", "lost: " + c.Lost})
		}
		if c.Remedy != "" {
			rows = append(rows, []string{"", "", fmt.Sprintf("[%s]", c.Remedy)})
		}
	}
	return rows
}

// diagnosisJSON is what doctor -o json prints.
type diagnosisJSON struct {
	Schema int         `json:"schema"`
	Status string      `json:"status"` // the worst
	Checks []checkJSON `json:"checks"`
}

type checkJSON struct {
	Name   string `json:"name"`
	Status string `json:"status"`
	Detail string `json:"detail"`
	Lost   string `json:"lost,omitempty"`
	Remedy string `json:"remedy,omitempty"`
}

func diagnosis(checks []doctor.Check, worst doctor.Status) diagnosisJSON {
	out := diagnosisJSON{Schema: schema, Status: string(worst)}
	for i := range checks {
		c := &checks[i]
		out.Checks = append(out.Checks, checkJSON{
			Name: c.Name, Status: string(c.Status), Detail: c.Detail, Lost: c.Lost, Remedy: c.Remedy,
		})
	}
	return out
}
