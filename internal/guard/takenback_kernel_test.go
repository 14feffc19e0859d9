// SPDX-License-Identifier: Apache-2.0

package guard_test

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net"
	"os"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/sockhealth/sockhealth/internal/kernel"
	"github.com/sockhealth/sockhealth/internal/lab/labtest"
	"github.com/sockhealth/sockhealth/internal/loader"
	"github.com/sockhealth/sockhealth/internal/loader/loadertest"
)

// takenBack makes a connection whose peer takes its window back while data is under
// way: that data is retransmitted, and answered with a window that is shut. Older
// kernels let a peer keep what it was given: then the test is skipped.
func takenBack(t *testing.T, b *loadertest.Bed) (c, peer *net.TCPConn) {
	t.Helper()
	c, peer = labtest.Pair(t, b.Lab, 0)
	half := make([]byte, 20<<10)
	if _, err := c.Write(half); err != nil {
		t.Fatal(err)
	}
	labtest.Eventually(t, late, func() bool { return labtest.TCPInfo(t, c).Unacked == 0 }, "the first half has come")
	drop := labtest.Fault(t)(b.DropC2S(labtest.Addr(peer.LocalAddr()).Port()))
	if _, err := c.Write(half); err != nil {
		t.Fatal(err)
	}
	labtest.Setsockopt(t, peer, unix.SOL_SOCKET, unix.SO_RCVBUF, 2<<10)
	if _, err := peer.Write([]byte{1}); err != nil { // says so
		t.Fatal(err)
	}
	took := func() bool {
		i := labtest.TCPInfo(t, c)
		return i.Snd_wnd == 0 && i.Unacked > 0
	}
	running, _, err := kernel.Running()
	if err != nil {
		t.Fatal(err)
	}
	said := time.Now()
	labtest.Eventually(t, late, func() bool {
		return took() || running.Before(kernel.Release{Major: 6, Minor: 18}) && time.Since(said) > 2*time.Second
	}, "the window is taken back")
	if !took() {
		t.Skip("needs a kernel that takes a window back (Linux 6.18 does)")
	}
	labtest.Heal(t, drop)
	return c, peer
}

// TestTakenBackCap: a peer that took its window back is not brought under a limit of
// retransmissions, which counts those that it has answered as well.
func TestTakenBackCap(t *testing.T) {
	const either = "version: 1\ndefaults: {user_timeout: 30s, in_flight: %s}\npeers: [{name: server, cidrs: [10.91.2.0/24]}]\n"
	b := loadertest.New(t, fmt.Sprintf(either, "user_timeout"))
	loadertest.Need(t, b.Programs, kernel.RTOCap)
	err := b.Server.Do(func() error { return os.WriteFile("/proc/sys/net/ipv4/tcp_shrink_window", []byte("1"), 0) })
	if err != nil {
		t.Fatal(err)
	}
	c, _ := takenBack(t, b)
	before := labtest.RTOMax(t, c)
	b.SetPolicy(t, fmt.Sprintf(either, "rto_cap"))
	var told []loader.Adoption
	err = b.Client.Do(func() error {
		_, err := b.Programs.Adopt(loader.AdoptOptions{Budget: 10}, func(one loader.Adoption) error {
			told = append(told, one)
			return nil
		})
		return err
	})
	if err != nil || len(told) != 1 || told[0].Wait != loader.WaitWindow {
		t.Errorf("told %+v (%v)", told, err)
	}
	if got := labtest.RTOMax(t, c); got != before || labtest.Options(t, c).UserTimeout != 30*time.Second {
		t.Errorf("TCP_RTO_MAX_MS %s, options %+v", got, labtest.Options(t, c))
	}
}

// TestTakenBack: a peer that takes its window back, and answers, lives longer than the
// user timeout, and has it back when it reads; one whose path is gone ends within it
// (kernel-facts L10).
func TestTakenBack(t *testing.T) {
	b := loadertest.New(t, slowReaders)
	loadertest.Need(t, b.Programs, kernel.Guard)
	err := b.Server.Do(func() error { return os.WriteFile("/proc/sys/net/ipv4/tcp_shrink_window", []byte("1"), 0) })
	if errors.Is(err, fs.ErrNotExist) {
		t.Skip("needs net.ipv4.tcp_shrink_window (Linux 6.5)")
	} else if err != nil {
		t.Fatal(err)
	}
	g, _ := start(t, b)
	kept, keptPeer := takenBack(t, b)
	lost, lostPeer := takenBack(t, b)
	shut(t, g, 2)
	began := time.Now()
	labtest.Eventually(t, 4*userTimeout+late, func() bool {
		return time.Since(began) > 4*userTimeout || !lives(t, kept) || !lives(t, lost)
	}, "time to pass")
	if !lives(t, kept) || !lives(t, lost) {
		t.Fatalf("after %s: alive %t and %t", time.Since(began), lives(t, kept), lives(t, lost))
	}
	labtest.Setsockopt(t, keptPeer, unix.SOL_SOCKET, unix.SO_RCVBUF, 64<<10)
	go io.Copy(io.Discard, keptPeer)
	labtest.Eventually(t, late, func() bool { return labtest.Options(t, kept).UserTimeout == userTimeout }, "it has its user timeout back")
	if !lives(t, kept) {
		t.Error("the peer that reads again is ended")
	}
	if !loadertest.Has(t, b.Programs, kernel.RTOCap) {
		return // it takes minutes
	}
	labtest.Fault(t)(b.DropPort(labtest.Addr(lostPeer.LocalAddr()).Port()))
	dropped := time.Now()
	labtest.Eventually(t, userTimeout+g.Status().Interval+late, func() bool { return !lives(t, lost) }, "it is ended")
	t.Logf("ended %s after its path", time.Since(dropped))
}
