// SPDX-License-Identifier: Apache-2.0

package prober

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	nl "github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/sockhealth/sockhealth/internal/conn"
	"github.com/sockhealth/sockhealth/internal/lab"
	"github.com/sockhealth/sockhealth/internal/lab/labtest"
)

// each runs a test on every kind of connection, with timestamps and without, and
// one without selective acknowledgments either.
func each(t *testing.T, test func(t *testing.T, b *bed, p *pair)) {
	for _, have := range []struct {
		stamps, sack string
		kinds        []kind
	}{{"1", "1", kinds}, {"0", "1", kinds}, {"0", "0", kinds[:1]}} {
		b := newBed(t)
		sysctlIn(t, b.Client, "ipv4/tcp_timestamps", have.stamps)
		sysctlIn(t, b.Client, "ipv4/tcp_sack", have.sack)
		for _, k := range have.kinds {
			t.Run(fmt.Sprintf("%s, timestamps %s, sack %s", k.name, have.stamps, have.sack), func(t *testing.T) {
				test(t, b, connect(t, b, k))
			})
		}
	}
}

func TestIdleConnectionAnswers(t *testing.T) {
	each(t, func(t *testing.T, b *bed, p *pair) {
		s := p.snapshot(t)
		p.silent(t)
		send(t, p, s)
		p.answered(t)
		for range 4 { // faster than the peer answers: it must not mind
			send(t, p, s)
		}
		p.exchange(t)
	})
}

func TestConnectionWithDataInFlightAnswers(t *testing.T) {
	each(t, func(t *testing.T, b *bed, p *pair) {
		s := p.snapshot(t)
		fault := labtest.Fault(t)(b.Drop(lab.Match{MinLen: 200}))
		words := strings.Repeat("a long question ", 50)
		if _, err := p.client.Write([]byte(words)); err != nil {
			t.Fatal(err)
		}
		p.silent(t)
		send(t, p, s)
		p.answered(t)
		if i := labtest.TCPInfo(t, p.client); i.Unacked == 0 || i.State != unix.BPF_TCP_ESTABLISHED {
			t.Errorf("state %d with %d segments in flight, want the data still on its way", i.State, i.Unacked)
		}
		labtest.Heal(t, fault)
		expect(t, p.server, words)
		p.exchange(t)
	})
}

func TestDroppedPathStaysSilent(t *testing.T) {
	each(t, func(t *testing.T, b *bed, p *pair) {
		s := p.snapshot(t)
		wire, ear := listenIn(t, b.Router), listenIn(t, b.Client)
		fault := labtest.Fault(t)(b.Drop(lab.Match{}))
		p.silent(t)
		ear.empty()
		send(t, p, s)
		if _, ok := wire.probe(t, p.local, p.remote, s.SndUna); !ok {
			t.Fatal("the probe did not reach the router")
		}
		for {
			h, ok := ear.next(t, 300*time.Millisecond, p.local, p.remote)
			if !ok {
				break
			}
			if !h.out {
				t.Fatalf("something came back through the dropped path: %+v", h)
			}
		}
		if age := p.ackAge(t); age < 500*time.Millisecond {
			t.Errorf("last ACK is %v old, want it to age on", age)
		}
		labtest.Heal(t, fault)
		p.exchange(t)
	})
}

// vanish takes the server's end away without a word, as a crash does.
func (p *pair) vanish(t *testing.T) {
	t.Helper()
	labtest.Setsockopt(t, p.server, unix.IPPROTO_TCP, unix.TCP_REPAIR, 1)
	_ = p.server.Close()
}

func TestPeerWithoutStateResets(t *testing.T) {
	each(t, func(t *testing.T, b *bed, p *pair) {
		s := p.snapshot(t)
		p.vanish(t)
		if i := labtest.TCPInfo(t, p.client); i.State != unix.BPF_TCP_ESTABLISHED {
			t.Fatalf("state %d before the probe, want established", i.State)
		}
		send(t, p, s)
		_ = p.client.SetReadDeadline(time.Now().Add(patience))
		if _, err := p.client.Read(make([]byte, 1)); !errors.Is(err, unix.ECONNRESET) {
			t.Errorf("read = %v, want ECONNRESET", err)
		}
	})
}

// Half-closed connections answer too, in each of their two states.
func TestHalfClosedConnectionAnswers(t *testing.T) {
	b := newBed(t)
	for _, state := range []conn.State{conn.CloseWait, conn.FinWait2} {
		t.Run(state.String(), func(t *testing.T) {
			p := connect(t, b, kinds[0])
			s := p.snapshot(t)
			closes := p.client
			if state == conn.CloseWait {
				closes = p.server
			}
			if err := closes.CloseWrite(); err != nil {
				t.Fatal(err)
			}
			labtest.Eventually(t, patience, func() bool { return labtest.State(t, p.client) == state }, state.String())
			s.State = state
			if state == conn.CloseWait {
				s.RcvNxt++
			} else {
				s.SndUna++
			}
			p.silent(t)
			send(t, p, s)
			p.answered(t)
			if state == conn.CloseWait {
				say(t, p.client, p.server, "a last word")
			} else {
				say(t, p.server, p.client, "a last word")
			}
		})
	}
}

func TestOwnerRuleBlocks(t *testing.T) {
	labtest.NoLeak(t)
	b := newBed(t)
	for _, k := range kinds {
		t.Run(k.name, func(t *testing.T) {
			p := connect(t, b, k)
			s := p.snapshot(t)
			lift := labtest.BlockRoot(t, b.Client)
			if _, err := New().Send(b.Client, s); !errors.Is(err, ErrBlocked) || !errors.Is(err, unix.EPERM) {
				t.Errorf("Send = %v, want ErrBlocked", err)
			}
			if err := New().Route(b.Client, s); err != nil {
				t.Errorf("Route = %v, want nil: there is one", err)
			}
			lift()
			send(t, p, s)
			p.exchange(t)
		})
	}
}

// A segment that this host's own queue throws away was not asked of the peer.
func TestFullQueueIsAnError(t *testing.T) {
	b := newBed(t)
	for _, k := range kinds {
		t.Run(k.name, func(t *testing.T) {
			p := connect(t, b, k)
			s := p.snapshot(t)
			var tight *nl.Tbf // takes no packet above ten bytes
			in(t, b.Client, func() error {
				tight = &nl.Tbf{
					QdiscAttrs: nl.QdiscAttrs{LinkIndex: index(first.dev), Handle: nl.MakeHandle(1, 0), Parent: nl.HANDLE_ROOT},
					// Ten milliseconds of a thousand bytes a second, in ticks of 64 ns.
					Rate: 1000, Limit: 10, Buffer: 156250,
				}
				return nl.QdiscAdd(tight)
			})
			if _, err := New().Send(b.Client, s); !errors.Is(err, unix.ENOBUFS) {
				t.Errorf("Send = %v, want ENOBUFS", err)
			}
			in(t, b.Client, func() error { return nl.QdiscDel(tight) })
			p.exchange(t)
		})
	}
}
