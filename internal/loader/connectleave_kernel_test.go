// SPDX-License-Identifier: Apache-2.0

package loader_test

import (
	"errors"
	"path/filepath"
	"testing"
	"time"

	"github.com/cilium/ebpf/link"
	"golang.org/x/sys/unix"

	"github.com/sockhealth/sockhealth/internal/kernel"
	"github.com/sockhealth/sockhealth/internal/lab/labtest"
	"github.com/sockhealth/sockhealth/internal/loader"
	"github.com/sockhealth/sockhealth/internal/loader/loadertest"
)

// A policy that names the peer no more when the connection is made, and a pass that
// takes leave while it is not, give the application its own user timeout back.
func TestConnectUnnamed(t *testing.T) {
	const own = 30_000
	setup := func(a *attempt) { a.set(unix.IPPROTO_TCP, unix.TCP_USER_TIMEOUT, own) }
	b := loadertest.New(t, patient("tighten"))
	t.Run("policy", func(t *testing.T) {
		at, fault := hole(t, b.Lab, b.ServerAddr4)
		a := try(t, b.Client, at, false, setup)
		b.SetPolicy(t, slowPolicy+"peers: [{name: other, cidrs: [192.0.2.0/24]}]\n")
		labtest.Heal(t, fault)
		if err, _ := a.ended(late); err != nil || a.userTimeout() != own {
			t.Errorf("connect: %v, the user timeout is %d ms", err, a.userTimeout())
		}
		want := unset
		want.UserTimeout = own * time.Millisecond
		a.wantOptions(want)
		wantNoFaults(t, b.Programs)
	})
	for name, o := range map[string]loader.AdoptOptions{"leave": {Release: true}, "leave of connects": {Connects: true}} {
		t.Run(name, func(t *testing.T) { takesLeave(t, b, o, setup, own) })
	}
}

// takesLeave tries a pass that takes leave.
func takesLeave(t *testing.T, b *loadertest.Bed, o loader.AdoptOptions, setup func(*attempt), own int) {
	loadertest.Need(t, b.Programs, kernel.Adopt)
	b.SetPolicy(t, patient("tighten"))
	open, _ := labtest.Pair(t, b.Lab, 0)
	at, _ := hole(t, b.Lab, b.ServerAddr4)
	a := try(t, b.Client, at, false, setup)
	if got := a.userTimeout(); got != 20_000 {
		t.Fatalf("while it connects the user timeout is %d ms", got)
	}
	told := 0
	err := b.Client.Do(func() error {
		_, err := b.Programs.Adopt(o, func(loader.Adoption) error {
			told++
			return nil
		})
		return err
	})
	if err != nil || a.userTimeout() != own {
		t.Errorf("take leave: %v, the user timeout is %d ms", err, a.userTimeout())
	}
	if o.Connects {
		wantOptions(t, "one that is open", open, slow)
		if told != 0 {
			t.Errorf("told of %d", told)
		}
	}
	wantNoFaults(t, b.Programs)
}

// The bound of connect() that the kernel sets after the connection was made, for an
// application that set its own just before, is not taken for its wish.
func TestConnectLate(t *testing.T) {
	b := newPinBed(t)
	a := b.start(t, loadPinned, patient("tighten"))
	loadertest.Need(t, a.Programs, kernel.Adopt)
	c := b.dial(t, false)
	// Without the program that hears it the option is set as the kernel would then.
	l, err := link.LoadPinnedLink(filepath.Join(b.dir, "setsockopt"), nil)
	if err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(l.Detach(), l.Close()); err != nil {
		t.Fatal(err)
	}
	for i, set := range []int{20_000, 19_000} {
		app := time.Duration(i) * 19 * time.Second // the second is the application's own
		labtest.Setsockopt(t, c, unix.IPPROTO_TCP, unix.TCP_USER_TIMEOUT, set)
		var told []loader.Adoption
		err := b.Client.Do(func() error {
			_, err := a.Adopt(loader.AdoptOptions{Budget: plenty}, func(one loader.Adoption) error {
				told = append(told, one)
				return nil
			})
			return err
		})
		if err != nil || len(told) != 1 || told[0].Outcome != loader.Drifted {
			t.Fatalf("%d ms: told %+v (%v)", set, told, err)
		}
		if rec, _ := b.record(t, a.Programs, c); rec.App.UserTimeout != app {
			t.Errorf("%d ms: remembered of the application: %+v", set, rec.App)
		}
		if app == 0 {
			wantOptions(t, "repaired", c, slow)
		}
	}
}
