// SPDX-License-Identifier: Apache-2.0

package prober

import (
	"io"
	"net"
	"net/netip"
	"testing"
	"time"

	"github.com/sockhealth/sockhealth/internal/conn"
	"github.com/sockhealth/sockhealth/internal/lab/labtest"
)

const patience = 5 * time.Second

// pair is one connection from the lab's client to its server.
type pair struct {
	bed            *bed
	client, server *net.TCPConn
	local, remote  netip.AddrPort
	heard          uint32 // the stamp of the last ACK when silent came back
}

// kind is what a connection is made of.
type kind struct {
	name       string
	v6, mapped bool
	local      netip.Addr         // zero: the kernel's choice
	setup      func(fd int) error // before connect
}

var kinds = []kind{{name: "IPv4"}, {name: "IPv6", v6: true}, {name: "mapped", mapped: true}}

func connect(t testing.TB, b *bed, k kind) *pair {
	t.Helper()
	d := labtest.Dialer{NS: b.Client, Mapped: k.mapped, Setup: k.setup}
	if k.local.IsValid() {
		d.Local = netip.AddrPortFrom(k.local, 0)
	}
	to := []netip.Addr{b.ServerAddr4, b.ServerAddr6}[version(k.v6)]
	p := &pair{bed: b}
	p.client, p.server = labtest.PairTo(t, d, b.Server, netip.AddrPortFrom(to, 0))
	p.local, p.remote = labtest.Addr(p.client.LocalAddr()), labtest.Addr(p.client.RemoteAddr())
	return p
}

// exchange sends words both ways and fails the test unless they arrive whole.
func (p *pair) exchange(t testing.TB) {
	t.Helper()
	say(t, p.client, p.server, "is anybody there")
	say(t, p.server, p.client, "yes, and well")
}

func say(t testing.TB, from, to *net.TCPConn, words string) {
	t.Helper()
	if _, err := from.Write([]byte(words)); err != nil {
		t.Fatal(err)
	}
	expect(t, to, words)
}

func expect(t testing.TB, c *net.TCPConn, words string) {
	t.Helper()
	_ = c.SetReadDeadline(time.Now().Add(4 * patience)) // a retransmission may have backed off
	b := make([]byte, len(words))
	if _, err := io.ReadFull(c, b); err != nil || string(b) != words {
		t.Fatalf("read %q, %v, want %q", b, err, words)
	}
}

// snapshot exchanges a word each way and looks at the client's end once the
// last of it is acknowledged.
func (p *pair) snapshot(t testing.TB) *conn.Snapshot {
	t.Helper()
	p.exchange(t)
	s := &conn.Snapshot{}
	labtest.Eventually(t, patience, func() bool { p.look(t, s); return !s.InFlight() }, "the last acknowledgment")
	return s
}

// look looks at the client's end.
func (p *pair) look(t testing.TB, s *conn.Snapshot) {
	t.Helper()
	in(t, p.bed.Client, func() (err error) {
		*s, err = p.bed.programs.Look(p.local, p.remote, 0)
		return err
	})
}

// ackAge is the time since the client last heard an ACK.
func (p *pair) ackAge(t testing.TB) time.Duration {
	t.Helper()
	return time.Duration(labtest.TCPInfo(t, p.client).Last_ack_recv) * time.Millisecond
}

const silence = 300 * time.Millisecond

// silent waits until the client has heard nothing for a while.
func (p *pair) silent(t testing.TB) {
	t.Helper()
	labtest.Eventually(t, patience, func() bool { p.heard = p.stamp(t); return p.ackAge(t) >= silence }, "silence")
}

// answered waits for the ACK that breaks the silence.
func (p *pair) answered(t testing.TB) {
	t.Helper()
	labtest.Eventually(t, patience, func() bool { return p.stamp(t) != p.heard }, "an answer to the probe")
}

// stamp is that of the last ACK that the client heard.
func (p *pair) stamp(t testing.TB) uint32 {
	t.Helper()
	var s conn.Snapshot
	p.look(t, &s)
	return s.AckStamp
}

func send(t testing.TB, p *pair, s *conn.Snapshot) {
	t.Helper()
	if _, err := New().Send(p.bed.Client, s); err != nil {
		t.Fatal(err)
	}
}
