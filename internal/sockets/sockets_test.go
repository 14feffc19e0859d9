// SPDX-License-Identifier: Apache-2.0

package sockets_test

import (
	"errors"
	"io"
	"net"
	"net/netip"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"

	"github.com/sockhealth/sockhealth/internal/conn"
	"github.com/sockhealth/sockhealth/internal/kernel"
	"github.com/sockhealth/sockhealth/internal/lab/labtest"
	"github.com/sockhealth/sockhealth/internal/loader/loadertest"
	"github.com/sockhealth/sockhealth/internal/netns"
	"github.com/sockhealth/sockhealth/internal/sockets"
)

const late = 10 * time.Second

func get(s *sockets.Sockets, ns *netns.NS, c *net.TCPConn) (conn.Snapshot, error) {
	return s.Get(ns, labtest.Addr(c.LocalAddr()), labtest.Addr(c.RemoteAddr()))
}

func wantGone(t *testing.T, what string, err error) {
	t.Helper()
	if !errors.Is(err, sockets.ErrGone) {
		t.Errorf("%s: %v, want ErrGone", what, err)
	}
}

// TestGet compares a look with what the socket itself says.
func TestGet(t *testing.T) {
	b := loadertest.New(t, loadertest.Fast)
	s := sockets.New(b.Programs)
	for _, test := range []struct {
		name   string
		dialer labtest.Dialer
		addr   netip.Addr
		family uint8
	}{
		{"IPv4", labtest.Dialer{NS: b.Client}, b.ServerAddr4, unix.AF_INET},
		{"IPv6", labtest.Dialer{NS: b.Client}, b.ServerAddr6, unix.AF_INET6},
		{"mapped", labtest.Dialer{NS: b.Client, Mapped: true}, b.ServerAddr4, unix.AF_INET6},
		{"bound to a device", labtest.Dialer{NS: b.Client, Setup: func(fd int) error {
			ifs, err := net.Interfaces()
			for _, i := range ifs {
				if i.Flags&net.FlagLoopback == 0 {
					return errors.Join(err, unix.BindToDevice(fd, i.Name))
				}
			}
			return errors.New("no device to bind to")
		}}, b.ServerAddr4, unix.AF_INET},
	} {
		t.Run(test.name, func(t *testing.T) {
			client, server := labtest.PairTo(t, test.dialer, b.Server, netip.AddrPortFrom(test.addr, 0))
			server.Write(make([]byte, 300))
			io.ReadFull(client, make([]byte, 100))
			client.Write(make([]byte, 50))
			io.ReadFull(server, make([]byte, 50))
			labtest.Eventually(t, late, func() bool { return labtest.TCPInfo(t, client).Bytes_acked >= 50 }, "the ACK")
			snap, err := get(s, b.Client, client)
			if err != nil {
				t.Fatal(err)
			}
			wantLook(t, &snap, client, b.Client.Inode(), test.family, test.dialer.Mapped)
			again, err := s.Again(b.Client, snap.ID)
			if err != nil || again.Cookie != snap.Cookie {
				t.Errorf("again: %v, %v", again.ID, err)
			}
			found, err := s.Find(b.Client, netip.AddrPort{}, snap.Cookie)
			if err != nil || len(found) != 1 || found[0].ID != snap.ID {
				t.Errorf("by cookie: %v, %v", found, err)
			}
			found, err = s.Find(b.Client, snap.Local, 0)
			if err != nil || len(found) != 1 || found[0].ID != snap.ID {
				t.Errorf("by local address: %v, %v", found, err)
			}
		})
	}
}

// wantLook compares a look at a connection, after TestGet's exchange, with what the
// socket says. in is the inode of its namespace.
func wantLook(t *testing.T, snap *conn.Snapshot, client *net.TCPConn, in uint32, family uint8, mapped bool) {
	t.Helper()
	info := labtest.TCPInfo(t, client)
	want := map[string]any{
		"cookie": labtest.Cookie(t, client), "netns": in, "family": family,
		"received": info.Bytes_received, "acked": info.Bytes_acked, "unread": uint32(200),
		"state": conn.Established, "uid": uint32(unix.Getuid()), "in flight": false,
		"options": labtest.Options(t, client), "record": true, "direction": conn.Outbound,
		"mapped": mapped, "timestamps": true, "device up": true,
	}
	got := map[string]any{
		"cookie": snap.Cookie, "netns": snap.Netns, "family": snap.Family,
		"received": snap.BytesReceived, "acked": snap.BytesAcked, "unread": snap.Unread(),
		"state": snap.State, "uid": snap.UID, "in flight": snap.InFlight(),
		"options": snap.Options, "record": snap.HasRecord, "direction": snap.Record.Direction,
		"mapped": snap.Mapped(), "timestamps": snap.Timestamps, "device up": snap.DstDevUp,
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("look (-want +got):\n%s", diff)
	}
	if snap.Record.Effective != snap.Options || snap.Record.Policed != snap.Options || snap.Record.App.UserTimeout != 0 {
		t.Errorf("record %+v", snap.Record)
	}
	if off := conn.Now() - snap.Taken; off < 0 || off > late {
		t.Errorf("taken %v ago", off)
	}
}

// TestGone: whatever has the tuple afterwards is not the socket.
func TestGone(t *testing.T) {
	b := loadertest.New(t, loadertest.Fast+`
  - name: client
    cidrs: [10.91.1.0/24]
    direction: inbound
`)
	s := sockets.New(b.Programs)
	ln := labtest.Listen(t, b.Server, netip.AddrPortFrom(b.ServerAddr4, 0))
	client := labtest.Dial(t, b.Client, netip.AddrPort{}, labtest.Addr(ln.Addr()))
	server := labtest.Accept(t, ln)
	inbound, err := get(s, b.Server, server)
	if err != nil {
		t.Fatal(err)
	}
	outbound, err := get(s, b.Client, client)
	if err != nil {
		t.Fatal(err)
	}
	other := outbound.ID
	other.Cookie++
	_, err = s.Again(b.Client, other)
	wantGone(t, "another cookie", err)
	wantGone(t, "closing another cookie", s.Destroy(b.Client, other))
	_, err = s.Again(b.Router, outbound.ID)
	wantGone(t, "another namespace", err)

	// The client closes first and goes to TIME_WAIT; the inbound socket
	// vanishes and leaves its listener.
	client.Close()
	io.ReadAll(server)
	server.Close()
	labtest.Eventually(t, late, func() bool {
		_, err := s.Again(b.Server, inbound.ID)
		return errors.Is(err, sockets.ErrGone)
	}, "the inbound socket to be gone, its listener still there")
	_, err = s.Get(b.Server, inbound.Local, inbound.Remote)
	wantGone(t, "the listener in its place", err)
	_, err = s.Again(b.Client, outbound.ID)
	wantGone(t, "TIME_WAIT in its place", err)
	_, err = s.Get(b.Client, netip.AddrPortFrom(b.ClientAddr4, 1), outbound.Remote)
	wantGone(t, "a tuple nobody has", err)
	if found, err := s.Find(b.Client, netip.AddrPort{}, outbound.Cookie); err != nil || len(found) != 0 {
		t.Errorf("by cookie: %v, %v; want none", found, err)
	}
}

func TestDestroyExactlyOne(t *testing.T) {
	b := loadertest.New(t, loadertest.Fast)
	s := sockets.New(b.Programs)
	client, _ := labtest.Pair(t, b.Lab, 0)
	sibling, siblingPeer := labtest.Pair(t, b.Lab, 0)
	snap, err := get(s, b.Client, client)
	if err != nil {
		t.Fatal(err)
	}
	if err := s.Destroy(b.Client, snap.ID); err != nil {
		t.Fatal(err)
	}
	if _, err := client.Read(make([]byte, 1)); !errors.Is(err, unix.ECONNABORTED) {
		t.Errorf("read: %v, want ECONNABORTED", err)
	}
	wantGone(t, "closing twice", s.Destroy(b.Client, snap.ID))
	sibling.Write([]byte("x"))
	if _, err := io.ReadFull(siblingPeer, make([]byte, 1)); err != nil {
		t.Errorf("sibling: %v", err)
	}
}

// TestProvoke: the kernel's own keepalive leaves at once, the peer answers, and
// afterwards the options are what they were.
func TestProvoke(t *testing.T) {
	b := loadertest.New(t, `version: 1
peers: [{name: server, cidrs: [10.91.2.0/24], user_timeout: 60s, keepalive: {idle: 30s, interval: 5s, count: 5}}]
`)
	loadertest.Need(t, b.Programs, kernel.Provoke)
	s := sockets.New(b.Programs)
	client, _ := labtest.Pair(t, b.Lab, 0)
	untouched, _ := labtest.Pair(t, b.Lab, 0)
	before := labtest.Options(t, client)
	var snap conn.Snapshot
	labtest.Eventually(t, late, func() bool {
		var err error
		snap, err = get(s, b.Client, client)
		return err == nil && snap.PacketAge > 1100*time.Millisecond
	}, "silence")
	other, err := get(s, b.Client, untouched)
	if err != nil {
		t.Fatal(err)
	}
	reached, err := s.Provoke(b.Client, []uint64{snap.Cookie, 1 << 60})
	if err != nil || len(reached) != 1 || reached[0] != snap.Cookie {
		t.Fatalf("provoked %v, %v; want cookie %d alone", reached, err, snap.Cookie)
	}
	labtest.Eventually(t, late, func() bool {
		now, err := get(s, b.Client, client)
		return err == nil && now.AckStamp != snap.AckStamp
	}, "the answer to the keepalive")
	if reached, err := s.Calm(b.Client, []uint64{snap.Cookie}); err != nil || len(reached) != 1 {
		t.Fatalf("calmed %v, %v", reached, err)
	}
	if diff := cmp.Diff(before, labtest.Options(t, client)); diff != "" {
		t.Errorf("options afterwards (-before +after):\n%s", diff)
	}
	if now, err := get(s, b.Client, untouched); err != nil || now.AckStamp != other.AckStamp || now.DataStamp != other.DataStamp {
		t.Errorf("another socket heard something %v ago, %v", now.PacketAge, err)
	}
}

func TestScan(t *testing.T) {
	b := loadertest.New(t, loadertest.Fast)
	s := sockets.New(b.Programs)
	want := make(map[uint64]bool)
	for range 50 {
		client, _ := labtest.Pair(t, b.Lab, 0)
		want[labtest.Cookie(t, client)] = true
	}
	got := make(map[uint64]bool)
	if err := s.Scan(b.Client, func(snap conn.Snapshot) error {
		if !snap.HasRecord || snap.State == conn.Listen {
			t.Errorf("scan found %+v", snap)
		}
		got[snap.Cookie] = true
		return nil
	}); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("cookies (-want +got):\n%s", diff)
	}
	stop := errors.New("enough")
	if err := s.Scan(b.Client, func(conn.Snapshot) error { return stop }); !errors.Is(err, stop) {
		t.Errorf("scan ended with %v, want the callback's error", err)
	}
}

func BenchmarkGet(b *testing.B) {
	bed := loadertest.New(b, loadertest.Fast)
	s := sockets.New(bed.Programs)
	client, _ := labtest.Pair(b, bed.Lab, 0)
	for b.Loop() {
		if _, err := get(s, bed.Client, client); err != nil {
			b.Fatal(err)
		}
	}
}
