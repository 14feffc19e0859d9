// SPDX-License-Identifier: Apache-2.0

package registry_test

import (
	"errors"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/sockhealth/sockhealth/internal/lab/labtest"
	"github.com/sockhealth/sockhealth/internal/loader/loadertest"
	"github.com/sockhealth/sockhealth/internal/netns"
	"github.com/sockhealth/sockhealth/internal/netns/registry"
)

// What may not be looked at is counted, and hides nothing else.
func TestWithoutPtrace(t *testing.T) {
	labtest.NoLeak(t)
	p := loadertest.Load(t)
	r := newRegistry(t, p)
	refresh(t, r)
	before := r.Status().Denied
	hidden := newSubject(t)
	keepers["a process"](t, hidden)
	socket := newSubject(t)
	keepers["a TCP socket"](t, socket)
	onOwnThread(func() {
		if err := drop(unix.CAP_SYS_PTRACE); err != nil {
			t.Error(err)
			return
		}
		if err := r.Refresh(); !errors.Is(err, netns.ErrPermission) {
			t.Errorf("Refresh: %v", err)
		}
	})
	if got := r.Status(); got.Denied < before+2 || knows(t, r, hidden.Inode()) || knows(t, r, socket.Inode()) {
		t.Errorf("%+v, want two more denied than %d", got, before)
	}
	refresh(t, r)
	if got := r.Status(); got.Denied > before || !knows(t, r, hidden.Inode()) || !knows(t, r, socket.Inode()) {
		t.Errorf("with all rights: %+v", got)
	}
}

// drop takes a capability from the calling thread alone.
func drop(capability int) error {
	hdr := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
	var data [2]unix.CapUserData
	if err := unix.Capget(&hdr, &data[0]); err != nil {
		return err
	}
	data[capability/32].Effective &^= 1 << (capability % 32)
	data[capability/32].Permitted &^= 1 << (capability % 32)
	return unix.Capset(&hdr, &data[0])
}

// childPIDs is an agent in a process id namespace of its own.
func childPIDs() error {
	r, err := registry.New(nil)
	if err != nil {
		return err
	}
	if err := r.Refresh(); !errors.Is(err, registry.ErrForeignPIDs) {
		return errors.New("Refresh does not say that processes are out of sight")
	}
	return nil
}

func TestForeignPIDs(t *testing.T) {
	labtest.Root(t)
	r := newRegistry(t, nil)
	if err := r.Refresh(); errors.Is(err, registry.ErrForeignPIDs) {
		t.Skip(err)
	}
	child(t, "pids", &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWPID})
}
