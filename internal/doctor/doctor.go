// SPDX-License-Identifier: Apache-2.0

package doctor

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/sockhealth/sockhealth/internal/kernel"
	"github.com/sockhealth/sockhealth/internal/loader"
)

// Status is what came of a check.
type Status string

// Statuses, from the best to the worst.
const (
	Works    Status = "works"
	Unneeded Status = "unneeded" // it does not work, and another does all that it would do
	Untested Status = "untested" // what the check stands on is missing already
	Degraded Status = "degraded" // the agent runs, and lacks something
	Missing  Status = "missing"  // the agent cannot run
)

// Check is what came of one check.
type Check struct {
	Name   string
	Status Status
	// Detail is what was found, or why it does not work.
	Detail string
	// Lost is what the agent cannot do, "" where that is to run at all; Remedy
	// is what helps. Both are "" where it works.
	Lost, Remedy string
}

// Worst returns the worst status of the checks; what is untested counts as what
// works, since something worse is the cause.
func Worst(checks []Check) Status {
	worst := Works
	for i := range checks {
		switch s := checks[i].Status; {
		case s == Missing:
			return Missing
		case s == Degraded:
			worst = Degraded
		}
	}
	return worst
}

// Examine makes every check, on a connection of its own. Only where ctx ends it returns
// an error, ctx's own.
func Examine(ctx context.Context) ([]Check, error) {
	b := &bench{ctx: ctx, lacking: loader.Require() != nil}
	defer b.close()
	out := examine(func(p *plan) (string, error) {
		if err := ctx.Err(); err != nil {
			return "", fmt.Errorf("%w: %w", errUntested, err)
		}
		return p.try(b)
	})
	return out, ctx.Err()
}

// examine makes the list: what the agent requires, then every plan as it is asked.
func examine(ask func(*plan) (string, error)) (out []Check) {
	for _, r := range loader.Requirements() {
		out = append(out, conclude(&plan{name: r.Name, essential: true}, r.Have, r.Err))
	}
	for _, p := range plans() {
		detail, err := ask(&p)
		out = append(out, conclude(&p, detail, err))
	}
	return unneeded(out)
}

// substitutes names for a check the one that, where it works, does all that this
// one would.
var substitutes = map[string]string{
	"inet_diag": kernel.Scan.String(), kernel.Scan.String(): "inet_diag",
	"destroy": kernel.BPFDestroy.String(), kernel.BPFDestroy.String(): "destroy",
}

// unneeded finds the checks that failed and whose substitute works.
func unneeded(checks []Check) []Check {
	works := make(map[string]bool)
	for i := range checks {
		works[checks[i].Name] = checks[i].Status == Works
	}
	for i := range checks {
		c := &checks[i]
		if other := substitutes[c.Name]; c.Status == Degraded && works[other] {
			*c = Check{Name: c.Name, Status: Unneeded, Detail: fmt.Sprintf("%s does what it would: %s", other, c.Detail)}
		}
	}
	return checks
}

// errUntested is for a check that could not be tried; the text beside it says
// what it lacked.
var errUntested = errors.New("not tried")

// errPartly is for a check without which the agent cannot run, of which it lacks but a
// part.
var errPartly = errors.New("not all")

// conclude puts what came of a plan into words.
func conclude(p *plan, detail string, err error) Check {
	c := Check{Name: p.name, Status: Works, Detail: detail}
	if err == nil {
		return c
	}
	if errors.Is(err, errUntested) {
		c.Status, c.Detail = Untested, oneLine(err)
		return c
	}
	c.Status, c.Detail, c.Lost, c.Remedy = Degraded, oneLine(err), p.lost, p.remedy
	if p.essential && !errors.Is(err, errPartly) {
		c.Status = Missing
	}
	var missing *loader.MissingError
	if errors.As(err, &missing) { // it knows better
		c.Detail, c.Remedy = missing.What, missing.Remedy
		if missing.Err != nil {
			c.Detail = fmt.Sprintf("%s: %s", missing.What, oneLine(missing.Err))
		}
	}
	return c
}

// oneLine writes an error without the log of a verifier below it.
func oneLine(err error) string {
	line, _, _ := strings.Cut(err.Error(), "\n")
	return line
}
