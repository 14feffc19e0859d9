// SPDX-License-Identifier: Apache-2.0

package loader_test

import (
	"net/netip"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/sockhealth/sockhealth/internal/conn"
	"github.com/sockhealth/sockhealth/internal/lab/labtest"
	"github.com/sockhealth/sockhealth/internal/loader"
)

// TestSilentBeyond: what nobody could judge, or is being judged already, is not
// suspected, however long its request is out.
func TestSilentBeyond(t *testing.T) {
	w := watch(t, silent)
	flagged := func(flag uint8) func(*testing.T, talk) {
		return func(t *testing.T, k talk) {
			labtest.Control(t, k.client, func(fd int) error { return loader.Flagged(w.Programs, fd, flag) })
		}
	}
	waits := func(t *testing.T, k talk) talk {
		t.Helper()
		say(t, k.client, k.server, "request")
		return k
	}
	beyond := map[string]talk{}
	for name, put := range map[string]func(*testing.T, talk){
		"ambiguous":  flagged(loader.FlagAmbiguous),
		"released":   flagged(loader.FlagReleasing),
		"connecting": flagged(loader.FlagConnecting),
		"judged": func(t *testing.T, k talk) {
			labtest.Control(t, k.client, func(fd int) error { return loader.ProbedUntil(w.Programs, fd, conn.Now()+time.Hour) })
		},
		"signs":     func(t *testing.T, k talk) { labtest.Sign(t, k.client, w.ServerAddr4) },
		"in repair": func(t *testing.T, k talk) { labtest.Setsockopt(t, k.client, unix.IPPROTO_TCP, unix.TCP_REPAIR, 1) },
	} {
		k := waits(t, w.talk(t))
		put(t, k)
		beyond[name] = k
	}
	control := waits(t, w.talk(t))
	labtest.Eventually(t, 20*time.Second, func() bool { w.pass(t); return len(w.of(control.client)) > 1 }, "suspected twice")
	for name, k := range beyond {
		if n := len(w.of(k.client)); n != 0 {
			t.Errorf("%s: suspected %d times", name, n)
		}
	}
}

// TestSilentBacklog: what waits behind the lock of a socket may be the answer.
func TestSilentBacklog(t *testing.T) {
	w := watch(t, silent)
	k, control := w.talk(t), w.talk(t)
	for _, one := range []talk{k, control} {
		say(t, one.client, one.server, "request")
	}
	release := labtest.StuckSend(t, k.client)
	defer release()
	labtest.Eventually(t, 20*time.Second, func() bool {
		var s conn.Snapshot
		err := w.Client.Do(func() (err error) {
			s, err = w.Programs.Look(labtest.Addr(k.client.LocalAddr()), labtest.Addr(k.client.RemoteAddr()), 0)
			return err
		})
		return err == nil && s.Locked
	}, "the socket is locked")
	if _, err := k.server.Write([]byte("answer")); err != nil {
		t.Fatal(err)
	}
	labtest.Eventually(t, 20*time.Second, func() bool { w.pass(t); return len(w.of(control.client)) > 1 }, "suspected twice")
	if n := len(w.of(k.client)); n != 0 {
		t.Errorf("suspected %d times", n)
	}
}

// TestSilentMultipath: another path may carry the answer.
func TestSilentMultipath(t *testing.T) {
	w := watch(t, silent)
	ln := labtest.ListenMultipath(t, w.Server, netip.AddrPortFrom(w.ServerAddr4, 0))
	multipath := talk{client: labtest.DialMultipath(t, w.Client, labtest.Addr(ln.Addr()))}
	multipath.server = labtest.Accept(t, ln)
	control := w.talk(t)
	for _, k := range []talk{multipath, control} {
		say(t, k.client, k.server, "request")
	}
	labtest.Eventually(t, 20*time.Second, func() bool { w.pass(t); return len(w.of(control.client)) > 1 }, "suspected twice")
	if n := len(w.of(multipath.client)); n != 0 {
		t.Errorf("suspected %d times", n)
	}
}
