// SPDX-License-Identifier: Apache-2.0

package judge

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/sockhealth/sockhealth/internal/conn"
	"github.com/sockhealth/sockhealth/internal/lab"
	"github.com/sockhealth/sockhealth/internal/lab/labtest"
)

// crowd are connections that are judged at the same time, when all others were: what
// becomes of them would become of others, too.
type crowd struct {
	scenario
	n int
	// perPeer is what the policy allows to be closed of one peer in a second.
	perPeer int
	meets   func(*play, *meeting) // in place of play
	// weigh is what only all together tell; nil: nothing.
	weigh func(*crowd, []outcome) error
}

func crowds() []crowd {
	return []crowd{
		{scenario: scenario{name: "more than the budget", want: "dead_path: in turn, kept if well by then", entry: quick, only: outbound}, n: 5, perPeer: 1, meets: overBudget, weigh: inTurn},
		{scenario: scenario{name: "all peers silent at once", want: "dead_path: frozen, closed later if dead", entry: quick, only: outbound}, n: 4, perPeer: plenty, meets: cutOff},
	}
}

// meeting is where the connections of a crowd wait for each other.
type meeting struct {
	mu      sync.Mutex
	met     *sync.Cond
	size    int // at the beginning
	members int // who is still with it
	here    int
	rounds  int
	leader  *play
}

func newMeeting(members int) *meeting {
	m := &meeting{size: members, members: members}
	m.met = sync.NewCond(&m.mu)
	return m
}

// meet waits for the others.
func (m *meeting) meet() {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.here++
	round := m.rounds
	for m.begin(); round == m.rounds; {
		m.met.Wait()
	}
}

// leave says that nobody needs to wait for the caller.
func (m *meeting) leave() {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.members--
	m.begin()
}

// begin goes on where all are there. The caller holds mu.
func (m *meeting) begin() {
	if m.here >= m.members {
		m.here = 0
		m.rounds++
		m.met.Broadcast()
	}
}

// once has one of the crowd do something while the others wait.
func (m *meeting) once(p *play, do func()) {
	m.meet()
	m.mu.Lock()
	if m.leader == nil {
		m.leader = p
	}
	leads := m.leader == p
	m.mu.Unlock()
	if leads {
		do()
	}
	m.meet()
}

// gather judges a crowd; first is the number of its first connection.
func (b *bed) gather(t *testing.T, seed uint64, c crowd, first int) []outcome {
	t.Helper()
	text := strings.Replace(policyText, fmt.Sprintf("per_peer: %d", plenty), fmt.Sprintf("per_peer: %d", c.perPeer), 1)
	if err := os.WriteFile(filepath.Join(b.dir, "policy.yaml"), []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
	if _, err := b.admin.Reload(t.Context()); err != nil {
		t.Fatal(err)
	}
	m := newMeeting(c.n)
	c.play = func(p *play) {
		defer m.leave()
		c.meets(p, m)
	}
	var fit []variant
	for _, v := range variants() {
		if c.only(v) && (lab.IPv6() || v.family == ipv4) {
			fit = append(fit, v)
		}
	}
	plays := make([]outcome, c.n)
	var all sync.WaitGroup
	for i := range plays {
		plays[i] = outcome{number: first + i, scenario: &c.scenario, variant: fit[i%len(fit)]}
		all.Go(func() { b.judge(t, seed, &plays[i]) })
	}
	all.Wait()
	if c.weigh != nil {
		if err := c.weigh(&c, plays); err != nil && !plays[0].failed {
			plays[0].failed, plays[0].why = true, err.Error()
		}
	}
	return plays
}

// overBudget: more connections to one peer are dead at once than may be closed in a second.
// They are closed one after the other, and whose path is well when its turn comes lives.
func overBudget(p *play, m *meeting) {
	p.server, p.family = p.Servers[0], ipv4
	p.works()
	fault := p.drop(p.anyWay())
	m.meet()
	p.report()
	if p.out.action == "closed" {
		p.closed(0, deadPath)
		return
	}
	p.want("deferred", deadPath)
	window, _ := p.probes[p.entry].Schedule(0)
	// Once it is condemned, a turn a second, and the jitter. A window of its own comes then.
	turn := p.out.answered - p.asked + time.Duration(m.size)*1250*time.Millisecond
	if p.out.number%2 == 0 {
		p.out.dead = true
		p.aborted(turn)
		return
	}
	p.heal(fault)
	healed := conn.Now()
	labtest.Eventually(p, late+turn+window, func() bool {
		err, _ := p.near.ended()
		all := p.records()
		return err != nil || len(all) > 0 && all[len(all)-1].Verdict == aliveSlow
	}, "another verdict when its turn comes")
	if err, at := p.near.ended(); err != nil && at < healed+window {
		p.out.dead = true // its turn came before the path was well: this machine is slow
		p.aborted(turn)
		return
	}
	p.out.lives = true
	p.lives()
}

// inTurn: no more were closed than the budget has, what it had saved up for a second included.
func inTurn(c *crowd, plays []outcome) error {
	var at []time.Duration
	for i := range plays {
		if o := &plays[i]; o.toClose > 0 {
			at = append(at, o.began+o.toClose)
		}
	}
	if len(at) == 0 {
		return errors.New("none was closed")
	}
	took := slices.Max(at) - slices.Min(at)
	if most := 1 + int(float64(c.perPeer)*(took+time.Second).Seconds()); len(at) > most {
		return fmt.Errorf("%d were closed within %s, %d may be", len(at), took, most)
	}
	return nil
}

// cutOff: all that leaves this node is lost, and so it closes nothing. What is dead still
// when that is over is closed when it is reported again.
func cutOff(p *play, m *meeting) {
	p.server = p.Servers[p.out.number%len(p.Servers)]
	p.works()
	dead := p.out.number%2 == 0
	if dead {
		p.drop(p.anyWay())
	}
	var cut *lab.Fault
	m.once(p, func() { cut = p.drop(lab.Match{}) })
	p.report()
	p.want("frozen", deadPath)
	m.once(p, func() { p.heal(cut) })
	if !dead {
		p.out.lives = true
		p.lives()
	}
	m.once(p, func() {
		for _, words := range []string{"closing is frozen: most peers fell silent", "closing goes on"} {
			labtest.Eventually(p, late, func() bool { return p.agent.told(words) }, words)
		}
	})
	if dead {
		p.report()
		p.closed(0, deadPath)
	}
}
