// SPDX-License-Identifier: Apache-2.0

package lab_test

import (
	"errors"
	"io"
	"net"
	"net/netip"
	"syscall"
	"testing"
	"time"

	"github.com/sockhealth/sockhealth/internal/conn"
	"github.com/sockhealth/sockhealth/internal/lab"
	"github.com/sockhealth/sockhealth/internal/lab/labtest"
)

// silence is how long nothing has to come to count as nothing. The lab's round
// trip takes microseconds.
const silence = 300 * time.Millisecond

// expectSilence reads and wants neither data nor an error of the network.
func expectSilence(t *testing.T, c net.Conn) {
	t.Helper()
	if err := c.SetReadDeadline(time.Now().Add(silence)); err != nil {
		t.Fatal(err)
	}
	if n, err := c.Read(make([]byte, 16)); n != 0 || !isTimeout(err) {
		t.Fatalf("read %d bytes, %v; want silence", n, err)
	}
}

func TestDropIsSilentAndHeals(t *testing.T) {
	l := labtest.New(t, lab.Options{})
	for name, addr := range map[string]netip.Addr{"v4": l.ServerAddr4, "v6": l.ServerAddr6} {
		ln := labtest.Listen(t, l.Server, netip.AddrPortFrom(addr, 7100))
		there := labtest.Dialer{NS: l.Client, Timeout: silence}
		client := labtest.Dial(t, l.Client, netip.AddrPort{}, labtest.Addr(ln.Addr()))
		server := labtest.Accept(t, ln)
		echo(t, client, server)

		resets := labtest.Counter(t)(l.Count(lab.Match{Set: lab.RST}))
		fault := labtest.Fault(t)(l.DropPort(7100))
		if _, err := client.Write([]byte("lost")); err != nil {
			t.Fatal(err)
		}
		expectSilence(t, server)
		expectSilence(t, client)
		var nerr net.Error
		if _, err := there.Try(labtest.Addr(ln.Addr())); !errors.As(err, &nerr) || !nerr.Timeout() {
			t.Errorf("%s: connect into the drop: %v, want a timeout", name, err)
		}
		if got := labtest.State(t, client); got != conn.Established {
			t.Errorf("%s: client is %s", name, got)
		}
		if n := labtest.Packets(t, fault); n < 2 {
			t.Errorf("%s: %d packets dropped, want data and SYN", name, n)
		}
		if n := labtest.Packets(t, resets); n != 0 {
			t.Errorf("%s: %d resets", name, n)
		}

		labtest.Heal(t, fault)
		if err := fault.Heal(); err != nil {
			t.Errorf("%s: second Heal: %v", name, err)
		}
		if n, err := fault.Packets(); err == nil {
			t.Errorf("%s: a healed fault has %d packets", name, n)
		}
		buf := make([]byte, 4)
		_ = server.SetReadDeadline(time.Now().Add(20 * time.Second))
		if _, err := server.Read(buf); err != nil || string(buf) != "lost" {
			t.Errorf("%s: after healing: %q, %v", name, buf, err)
		}
		_ = ln.Close()
	}
}

func TestOneWayDrops(t *testing.T) {
	l := labtest.New(t, lab.Options{})
	client, server := labtest.Pair(t, l, 7100)
	for name, c := range map[string]struct {
		drop func(uint16) (*lab.Fault, error)
		from net.Conn
		to   net.Conn
	}{
		"client to server": {l.DropC2S, client, server},
		"server to client": {l.DropS2C, server, client},
	} {
		fault := labtest.Fault(t)(c.drop(7100))
		if _, err := c.from.Write([]byte("lost")); err != nil {
			t.Fatal(err)
		}
		expectSilence(t, c.to)
		if labtest.Packets(t, fault) == 0 {
			t.Errorf("%s: nothing was dropped", name)
		}
		// The other way, the segment itself passes though its ACK does not.
		if _, err := c.to.Write([]byte("over")); err != nil {
			t.Fatal(err)
		}
		buf := make([]byte, 4)
		_ = c.from.SetReadDeadline(time.Now().Add(10 * time.Second))
		if _, err := c.from.Read(buf); err != nil || string(buf) != "over" {
			t.Errorf("%s: the other way: %q, %v", name, buf, err)
		}
		labtest.Heal(t, fault)
		_ = c.to.SetReadDeadline(time.Now().Add(20 * time.Second))
		if _, err := c.to.Read(buf); err != nil || string(buf) != "lost" {
			t.Errorf("%s: after healing: %q, %v", name, buf, err)
		}
	}
}

func TestStateLossHitsOneConnection(t *testing.T) {
	l := labtest.New(t, lab.Options{})
	ln := labtest.Listen(t, l.Server, netip.AddrPortFrom(l.ServerAddr4, 7100))
	remote := labtest.Addr(ln.Addr())
	lost := labtest.Dial(t, l.Client, netip.AddrPort{}, remote)
	lostServer := labtest.Accept(t, ln)
	kept := labtest.Dial(t, l.Client, netip.AddrPort{}, remote)
	keptServer := labtest.Accept(t, ln)

	fault := labtest.Fault(t)(l.StateLoss(labtest.Addr(lost.LocalAddr()), remote))
	echo(t, kept, keptServer)
	fresh := labtest.Dial(t, l.Client, netip.AddrPort{}, remote)
	echo(t, fresh, labtest.Accept(t, ln))
	if n := labtest.Packets(t, fault); n != 0 {
		t.Fatalf("%d packets of other connections dropped", n)
	}
	for _, way := range [][2]net.Conn{{lost, lostServer}, {lostServer, lost}} {
		if _, err := way[0].Write([]byte("lost")); err != nil {
			t.Fatal(err)
		}
		expectSilence(t, way[1])
	}
}

func TestTwoFaultsHealAlone(t *testing.T) {
	l := labtest.New(t, lab.Options{})
	a, aServer := labtest.Pair(t, l, 7100)
	b, bServer := labtest.Pair(t, l, 7101)
	faultA := labtest.Fault(t)(l.DropPort(7100))
	labtest.Fault(t)(l.DropPort(7101))
	labtest.Heal(t, faultA)
	echo(t, a, aServer)
	if _, err := b.Write([]byte("lost")); err != nil {
		t.Fatal(err)
	}
	expectSilence(t, bServer)
}

func TestPrefixesAndFamilies(t *testing.T) {
	l := labtest.New(t, lab.Options{Servers: 2})
	v4, v4Server := labtest.Pair(t, l, 7100)
	client := labtest.Dialer{NS: l.Client}
	v6, v6Server := labtest.PairTo(t, client, l.Server, netip.AddrPortFrom(l.ServerAddr6, 7100))
	other, otherServer := labtest.PairTo(t, client, l.Servers[1].NS, netip.AddrPortFrom(l.Servers[1].Addr4, 7100))

	fault := labtest.Fault(t)(l.Drop(lab.Match{Dst: netip.MustParsePrefix("10.91.2.0/24"), Both: true}))
	echo(t, v6, v6Server)
	echo(t, other, otherServer)
	if _, err := v4.Write([]byte("lost")); err != nil {
		t.Fatal(err)
	}
	expectSilence(t, v4Server)
	labtest.Heal(t, fault)

	fault = labtest.Fault(t)(l.Drop(lab.Match{Dst: netip.MustParsePrefix("fd91:0:0:2::/64")}))
	echo(t, other, otherServer)
	if _, err := v6.Write([]byte("lost")); err != nil {
		t.Fatal(err)
	}
	expectSilence(t, v6Server)
	labtest.Heal(t, fault)

	for name, m := range map[string]lab.Match{
		"host bits set":   {Src: netip.MustParsePrefix("10.91.2.1/24")},
		"mapped prefix":   {Dst: netip.MustParsePrefix("::ffff:10.91.2.2/128")},
		"of two families": {Src: lab.Only(l.ClientAddr4), Dst: lab.Only(l.ServerAddr6)},
	} {
		if _, err := l.Drop(m); err == nil {
			t.Errorf("%s: accepted", name)
		}
	}
}

func TestRejectResets(t *testing.T) {
	l := labtest.New(t, lab.Options{})
	for name, addr := range map[string]netip.Addr{"v4": l.ServerAddr4, "v6": l.ServerAddr6} {
		d := labtest.Dialer{NS: l.Client}
		client, _ := labtest.PairTo(t, d, l.Server, netip.AddrPortFrom(addr, 7100))
		fault := labtest.Fault(t)(l.RejectReset(lab.Match{DstPort: 7100}))
		if _, err := client.Write([]byte("refused")); err != nil {
			t.Fatal(err)
		}
		_ = client.SetReadDeadline(time.Now().Add(10 * time.Second))
		if _, err := client.Read(make([]byte, 1)); !errors.Is(err, syscall.ECONNRESET) {
			t.Errorf("%s: read: %v, want ECONNRESET", name, err)
		}
		if labtest.Packets(t, fault) == 0 {
			t.Errorf("%s: nothing was rejected", name)
		}
		labtest.Heal(t, fault)
	}
}

func TestCountersSeeWhatFaultsDrop(t *testing.T) {
	l := labtest.New(t, lab.Options{})
	client, _ := labtest.Pair(t, l, 7100)
	fault := labtest.Fault(t)(l.DropPort(7100))
	data := labtest.Counter(t)(l.Count(lab.Match{DstPort: 7100, MinLen: 101}))
	bare := labtest.Counter(t)(l.Count(lab.Match{DstPort: 7100, MaxLen: 100}))
	if _, err := client.Write(make([]byte, 500)); err != nil {
		t.Fatal(err)
	}
	labtest.Eventually(t, 10*time.Second, func() bool { return labtest.Packets(t, data) > 0 }, "the segment at the router")
	if n := labtest.Packets(t, bare); n != 0 {
		t.Errorf("%d segments without payload, want none", n)
	}
	if labtest.Packets(t, fault) == 0 {
		t.Error("the fault saw nothing")
	}
	if err := data.Remove(); err != nil {
		t.Fatal(err)
	}
	if _, err := data.Packets(); err == nil {
		t.Error("a removed counter still counts")
	}
}

func TestDropFirst(t *testing.T) {
	l := labtest.New(t, lab.Options{})
	client, server := labtest.Pair(t, l, 7100)
	there := lab.Match{DstPort: 7100, MinLen: 150}
	fault := labtest.Fault(t)(l.DropFirst(there, 2))
	want := make([]byte, 200)
	if _, err := client.Write(want); err != nil {
		t.Fatal(err)
	}
	_ = server.SetReadDeadline(time.Now().Add(20 * time.Second))
	if _, err := io.ReadFull(server, want); err != nil {
		t.Errorf("the third of its kind did not pass: %v", err)
	}
	if n := labtest.Packets(t, fault); n != 3 {
		t.Errorf("%d packets, want two lost and one that passed", n)
	}
}

// What the client's own output hook loses is lost there: the sender hears of it, and
// the router does not see it.
func TestDropLocally(t *testing.T) {
	l := labtest.New(t, lab.Options{})
	client, server := labtest.Pair(t, l, 7100)
	seen := labtest.Counter(t)(l.Count(lab.Match{DstPort: 7100, MinLen: 150}))
	fault := labtest.Fault(t)(l.DropLocally(lab.Match{DstPort: 7100, MinLen: 150}))
	want := make([]byte, 200)
	if _, err := client.Write(want); err != nil {
		t.Fatal(err)
	}
	labtest.Eventually(t, 20*time.Second, func() bool { return labtest.Packets(t, fault) > 0 }, "a packet to be lost")
	if n := labtest.Packets(t, seen); n != 0 {
		t.Errorf("%d packets came to the router", n)
	}
	labtest.Heal(t, fault)
	_ = server.SetReadDeadline(time.Now().Add(20 * time.Second))
	if _, err := io.ReadFull(server, want); err != nil {
		t.Errorf("after it was healed: %v", err)
	}
}
