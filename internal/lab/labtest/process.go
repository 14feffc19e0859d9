// SPDX-License-Identifier: Apache-2.0

package labtest

import (
	"os/exec"
	"runtime"
	"syscall"
	"testing"

	"github.com/sockhealth/sockhealth/internal/netns"
)

// Start starts a process in a namespace. It does not outlive this one, however that
// ends: a test binary that ran out of time cleans nothing up. Who starts it ends it
// and waits for it all the same.
func Start(t testing.TB, ns *netns.NS, cmd *exec.Cmd) {
	t.Helper()
	if cmd.SysProcAttr == nil {
		cmd.SysProcAttr = new(syscall.SysProcAttr)
	}
	cmd.SysProcAttr.Pdeathsig = syscall.SIGKILL
	started, over, done := make(chan error, 1), make(chan struct{}), make(chan struct{})
	go func() {
		defer close(done)
		// The signal comes when the thread ends that has started the process
		// (prctl(2)): it stays to the end of the test.
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		started <- ns.Do(cmd.Start)
		<-over
	}()
	t.Cleanup(func() {
		close(over)
		<-done
	})
	if err := <-started; err != nil {
		t.Fatal(err)
	}
}
