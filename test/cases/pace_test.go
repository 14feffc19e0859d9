// SPDX-License-Identifier: Apache-2.0

package cases

import (
	"testing"
	"time"

	"github.com/sockhealth/sockhealth/internal/lab"
	"github.com/sockhealth/sockhealth/internal/lab/labtest"
)

// paced watches the segments without payload that pass the router.
type paced struct {
	counter *lab.Counter
	samples []sample
}

// sample is a count that was read between two moments.
type sample struct {
	before, after time.Time
	packets       uint64
}

func (n *node) newPaced(t *testing.T) *paced {
	t.Helper()
	p := &paced{counter: labtest.Counter(t)(n.Count(lab.Match{Set: lab.ACK, Clear: lab.SYN | lab.PSH | lab.FIN | lab.RST, MaxLen: 100}))}
	p.look(t)
	return p
}

// look takes a sample.
func (p *paced) look(t *testing.T) {
	t.Helper()
	s := sample{before: time.Now()}
	s.packets = labtest.Packets(t, p.counter)
	s.after = time.Now()
	p.samples = append(p.samples, s)
}

// want demands that at no time more keepalives were on their way than the agent
// may set off, and the connections' own beside; each has an answer. It returns
// how many there were.
func (p *paced) want(t *testing.T, own int) int {
	t.Helper()
	for i, from := range p.samples {
		for _, to := range p.samples[i+1:] {
			keepalives := float64(to.packets-from.packets) / 2
			took := to.after.Sub(from.before)
			if most := 1.1*pace*took.Seconds() + 2*burst + float64(own); keepalives > most {
				t.Fatalf("%.0f keepalives in %v", keepalives, took)
			}
		}
	}
	return int(p.samples[len(p.samples)-1].packets-p.samples[0].packets) / 2
}
