// SPDX-License-Identifier: Apache-2.0

package judge

import (
	"github.com/sockhealth/sockhealth/internal/api"
	"github.com/sockhealth/sockhealth/internal/lab/labtest"
	"github.com/sockhealth/sockhealth/internal/verdict"
)

// records are what the agent has kept of the verdicts on the connection, the last one
// last.
func (p *play) records() (all []api.VerdictEvent) {
	p.Helper()
	q := api.EventQuery{Kind: "verdict", Cookie: p.cookie}
	err := p.admin.Events(p.Context(), q, func(e api.Event) error {
		all = append(all, *e.Verdict)
		return nil
	})
	if err != nil {
		p.Fatal(err)
	}
	return all
}

// recordOfClose returns that. It is made right after the close.
func (p *play) recordOfClose() (last *api.VerdictEvent) {
	p.Helper()
	labtest.Eventually(p, late, func() bool {
		for _, e := range p.records() {
			if e.Action == "closed" {
				last = &e
			}
		}
		return last != nil && last.Basis != nil && last.Basis.After != nil
	}, "the record of the close")
	return last
}

// recorded demands a record of what was answered, from which the same is decided again.
func (p *play) recorded() {
	p.Helper()
	for _, e := range p.records() {
		if verdictOf(e.Verdict, e.Reason) != p.out.given || e.Action != p.out.action {
			continue
		}
		in, err := e.Basis.Input()
		if err != nil {
			p.fail("the record of verdict %s: %v", p.out.given, err)
		}
		if again := verdict.Decide(in); string(again.Word) != e.Verdict || again.Reason != e.Reason {
			p.fail("from the record of verdict %s another one is decided: %+v", p.out.given, again)
		}
		return
	}
	if p.out.given != "gone (not_found)" { // which no socket was found for
		p.fail("no record of verdict %s, %s", p.out.given, p.out.action)
	}
}

// delivery demands what the agent says of the request.
func (p *play) delivery(want string) {
	p.Helper()
	if p.out.delivery != want {
		p.fail("verdict %s, delivery %s, want %s", p.out.given, p.out.delivery, want)
	}
}
