// SPDX-License-Identifier: Apache-2.0

package loader_test

import (
	"errors"
	"net"
	"net/netip"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/sockhealth/sockhealth/internal/kernel"
	"github.com/sockhealth/sockhealth/internal/lab"
	"github.com/sockhealth/sockhealth/internal/lab/labtest"
	"github.com/sockhealth/sockhealth/internal/loader"
	"github.com/sockhealth/sockhealth/internal/loader/loadertest"
	"github.com/sockhealth/sockhealth/internal/netns"
)

// refused demands that a pass leaves c alone, with a reason and without a record.
func (a *adoption) refused(t *testing.T, ns *netns.NS, what string, c *net.TCPConn, why loader.Refusal) {
	t.Helper()
	told, stats := a.pass(t, ns, plenty)
	one := told.of(c)
	if one.Outcome != loader.Refused || one.Refusal != why || a.InForce().Peer(one.Policy) == nil ||
		one.Wait != loader.WaitNone || one.Adopted || stats.Outcomes[loader.Refused] == 0 {
		t.Errorf("%s: told %+v, %+v, want %s", what, one, stats, why)
	}
}

// TestAdoptWhat: what a pass adopts, and what it leaves alone.
func TestAdoptWhat(t *testing.T) {
	shared := newAdoption(t, bothWays)
	for _, tc := range []struct {
		name  string
		test  func(*adoption, *testing.T)
		alone bool // it counts what a pass tells
	}{
		{"repair", (*adoption).testRepair, false},
		{"keys", (*adoption).testKeys, false},
		{"orphan", (*adoption).testOrphan, false},
		{"half closed", (*adoption).testHalfClosed, false},
		{"multipath", (*adoption).testMultipath, true},
		{"unaccepted", (*adoption).testUnaccepted, true},
		{"others", (*adoption).testOthers, true},
	} {
		t.Run(tc.name, func(t *testing.T) {
			a := shared
			if tc.alone {
				a = &adoption{Lab: labtest.New(t, lab.Options{}), Programs: shared.Programs}
			}
			tc.test(a, t)
		})
	}
}

// testMultipath: a connection of Multipath TCP is not ours to touch. One of
// plain TCP to the same listener is, although the kernel made that listener itself.
func (a *adoption) testMultipath(t *testing.T) {
	ln := labtest.ListenMultipath(t, a.Server, netip.AddrPortFrom(a.ServerAddr4, 0))
	client := labtest.DialMultipath(t, a.Client, labtest.Addr(ln.Addr()))
	a.refused(t, a.Client, "client", client, loader.RefusalMPTCP)
	server := labtest.Accept(t, ln)
	told, _ := a.pass(t, a.Server, plenty)
	if len(told) != 1 || adopted(t, told, server).Refusal != loader.RefusalMPTCP {
		t.Errorf("server: told %+v", told)
	}
	wantAlive(t, "after", client, server)

	plain := labtest.Dial(t, a.Client, netip.AddrPort{}, labtest.Addr(ln.Addr()))
	if one := adopted(t, a.settle(t, a.Client), plain); one.Outcome != loader.Adopted {
		t.Errorf("plain client: told %+v", one)
	}
	ends := [2]netip.AddrPort{labtest.Addr(plain.RemoteAddr()), labtest.Addr(plain.LocalAddr())}
	labtest.Eventually(t, late, func() bool {
		told, _ := a.pass(t, a.Server, plenty)
		return told[ends].Outcome == loader.Adopted
	}, "the server's end is there")
	a.settle(t, a.Server)
	accepted := labtest.Accept(t, ln)
	wantOptions(t, "plain server end", accepted, slow)
	wantNoFaults(t, a.Programs)
}

// testUnaccepted: a connection that waits in the accept queue is its
// application's already.
func (a *adoption) testUnaccepted(t *testing.T) {
	ln := labtest.Listen(t, a.Server, netip.AddrPortFrom(a.ServerAddr4, 0))
	labtest.Dial(t, a.Client, netip.AddrPort{}, labtest.Addr(ln.Addr()))
	labtest.Eventually(t, late, func() bool {
		told, _ := a.pass(t, a.Server, plenty)
		return len(told) == 1
	}, "the server's end is there")
	a.settle(t, a.Server)
	wantOptions(t, "accepted later", labtest.Accept(t, ln), slow)
}

// testRepair: a connection under checkpoint and restore is not ours to touch.
func (a *adoption) testRepair(t *testing.T) {
	client, _ := labtest.Pair(t, a.Lab, 0)
	labtest.Setsockopt(t, client, unix.IPPROTO_TCP, unix.TCP_REPAIR, 1)
	a.refused(t, a.Client, "in repair", client, loader.RefusalRepair)
	wantOptions(t, "in repair", client, unset)
	labtest.Setsockopt(t, client, unix.IPPROTO_TCP, unix.TCP_REPAIR, -1) // TCP_REPAIR_OFF_NO_WP
	a.settle(t, a.Client)
	wantOptions(t, "repaired", client, slow)
}

// testKeys: signed segments are not ours to provoke.
func (a *adoption) testKeys(t *testing.T) {
	client, _ := labtest.Pair(t, a.Lab, 0)
	labtest.Sign(t, client, a.ServerAddr4)
	a.refused(t, a.Client, "with a key", client, loader.RefusalMD5OrAO)
	wantOptions(t, "with a key", client, unset)
}

// testOrphan: what no process has open any more is not ours to touch.
func (a *adoption) testOrphan(t *testing.T) {
	client, _ := labtest.Pair(t, a.Lab, 0)
	labtest.Fault(t)(a.Drop(lab.Match{Src: lab.Only(a.ClientAddr4), Dst: lab.Only(a.ServerAddr4)}))
	if _, err := client.Write([]byte("last words")); err != nil {
		t.Fatal(err)
	}
	client.Close()
	a.refused(t, a.Client, "closed", client, loader.RefusalOrphan)
}

// testOthers: listeners, and states that carry nothing, are passed over.
func (a *adoption) testOthers(t *testing.T) {
	labtest.Listen(t, a.Client, netip.AddrPortFrom(a.ClientAddr4, 0))
	// A connect to nowhere: SYN_SENT.
	fd := -1
	err := a.Client.Do(func() (err error) {
		fd, err = unix.Socket(unix.AF_INET, unix.SOCK_STREAM|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, 0)
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(fd)
	if err := unix.Connect(fd, &unix.SockaddrInet4{Addr: [4]byte{10, 91, 2, 77}, Port: 7}); err != unix.EINPROGRESS {
		t.Fatal(err)
	}
	// One that the client closed first: TIME_WAIT.
	client, server := labtest.Pair(t, a.Lab, 0)
	client.Close()
	server.Close()
	labtest.Eventually(t, late, func() bool {
		told, stats := a.pass(t, a.Client, plenty)
		return len(told) == 0 && stats == (loader.AdoptStats{})
	}, "nothing is told")
	wantNoFaults(t, a.Programs)
}

// testHalfClosed: a connection of which one half is closed is brought in line
// like any other.
func (a *adoption) testHalfClosed(t *testing.T) {
	ln := labtest.Listen(t, a.Server, netip.AddrPortFrom(a.ServerAddr4, 0))
	client := labtest.Dial(t, a.Client, netip.AddrPort{}, labtest.Addr(ln.Addr()))
	server := labtest.Accept(t, ln)
	if err := client.CloseWrite(); err != nil {
		t.Fatal(err)
	}
	labtest.Eventually(t, late, func() bool { return a.look(t, a.Client, client).State.String() == "fin_wait2" }, "FIN_WAIT2")
	a.settle(t, a.Client)
	a.settle(t, a.Server)
	wantOptions(t, "FIN_WAIT2", client, slow)
	wantOptions(t, "CLOSE_WAIT", server, slow)
}

// TestAdoptMisuse: what a pass cannot do it says.
func TestAdoptMisuse(t *testing.T) {
	p := loadertest.Load(t)
	none := func(loader.Adoption) error { return nil }
	if err := p.Lacks(kernel.Adopt); err != nil {
		if _, err := p.Adopt(loader.AdoptOptions{}, none); !errors.Is(err, loader.ErrUnsupported) {
			t.Errorf("%v, want ErrUnsupported", err)
		}
		loadertest.Need(t, p, kernel.Adopt)
	}
	if _, err := p.Adopt(loader.AdoptOptions{}, none); !errors.Is(err, loader.ErrNoPolicy) {
		t.Errorf("%v, want ErrNoPolicy", err)
	}
	a := &adoption{Lab: labtest.New(t, lab.Options{}), Programs: p}
	a.setPolicy(t, bothWays)
	client, _ := labtest.Pair(t, a.Lab, 0)
	stop := errors.New("stop")
	err := a.Client.Do(func() error {
		_, err := a.Adopt(loader.AdoptOptions{}, func(loader.Adoption) error {
			if _, err := a.Adopt(loader.AdoptOptions{}, none); !errors.Is(err, loader.ErrPassing) {
				t.Errorf("a pass within a pass: %v, want ErrPassing", err)
			}
			return a.Server.Do(func() error { // elsewhere it may
				_, err := a.Adopt(loader.AdoptOptions{}, none)
				return errors.Join(err, stop)
			})
		})
		return err
	})
	if err != stop && !errors.Is(err, stop) {
		t.Errorf("%v, want the callback's", err)
	}
	a.settle(t, a.Client) // and the next is not in its way
	wantOptions(t, "client", client, slow)
}

// TestAdoptMany: a namespace full of connections takes one pass. None is silent for long
// enough to be asked first, however long it takes to open all.
func TestAdoptMany(t *testing.T) {
	_, peers, _ := strings.Cut(bothWays, "peers:")
	a := newAdoption(t, `version: 1
defaults: {user_timeout: 12m, keepalive: {idle: 10m, interval: 15s, count: 4}}
peers:`+peers)
	ln := labtest.Listen(t, a.Server, netip.AddrPortFrom(a.ServerAddr4, 0))
	n := labtest.Fewer(2000)
	for range n {
		labtest.Dial(t, a.Client, netip.AddrPort{}, labtest.Addr(ln.Addr()))
		labtest.Accept(t, ln)
	}
	for _, ns := range []*netns.NS{a.Client, a.Server} {
		for _, want := range []loader.Outcome{loader.Adopted, loader.Managed} {
			began := time.Now()
			told, stats := a.pass(t, ns, plenty)
			t.Logf("%d connections %s in %s", len(told), want, time.Since(began))
			if len(told) != n || stats.Outcomes[want] != uint64(n) {
				t.Errorf("told of %d, %+v, want %d %s", len(told), stats, n, want)
			}
			for _, one := range told {
				if one.Ambiguous || one.Wait != loader.WaitNone {
					t.Fatalf("told %+v", one)
				}
			}
		}
	}
	wantNoFaults(t, a.Programs)
}
