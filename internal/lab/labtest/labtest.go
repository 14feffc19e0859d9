// SPDX-License-Identifier: Apache-2.0

package labtest

import (
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/sockhealth/sockhealth/internal/kernel"
	"github.com/sockhealth/sockhealth/internal/lab"
	"github.com/sockhealth/sockhealth/internal/netns"
)

// Root skips the test without root, or fails it where it must run.
func Root(t testing.TB) {
	t.Helper()
	if os.Geteuid() != 0 {
		SkipOrFail(t, "needs root to make network namespaces and cgroups")
	}
}

// SkipOrFail ends the test: skipped, or failed where CI=true or
// SOCKHEALTH_MUST_RUN=1 says that it must run.
func SkipOrFail(t testing.TB, reason string) {
	t.Helper()
	if MustRun() {
		t.Fatal(reason)
	}
	t.Skip(reason)
}

// MustRun reports whether what a test needs must be there: CI=true or
// SOCKHEALTH_MUST_RUN=1.
func MustRun() bool {
	return os.Getenv("CI") == "true" || os.Getenv("SOCKHEALTH_MUST_RUN") == "1"
}

// without is the variable that names, with commas, what a machine lacks on
// purpose: "ipv6", "runc", a language that applications are written in ("c", "go",
// "java", "node", "python"), or checks of doctor.
const without = "SOCKHEALTH_TEST_WITHOUT"

// Without reports whether the machine lacks something on purpose.
func Without(what string) bool {
	return slices.Contains(strings.Split(os.Getenv(without), ","), what)
}

// Beside returns a program that stands in the same folder as the tests', where there
// is one: a machine without compilers is given what it is to run.
func Beside(name string) (path string, ok bool) {
	self, err := os.Executable()
	if err != nil {
		return "", false
	}
	path = filepath.Join(filepath.Dir(self), name)
	st, err := os.Stat(path)
	return path, err == nil && st.Mode().IsRegular()
}

// NeedModule loads a module of the kernel where the test has a virtual machine of its
// own, and skips the test elsewhere.
func NeedModule(t testing.TB, name string) {
	t.Helper()
	if os.Getenv("SOCKHEALTH_VM") == "" {
		t.Skipf("needs the module %s, and a machine of its own to load it (make vm)", name)
	}
	if out, err := exec.Command("modprobe", name).CombinedOutput(); err != nil {
		t.Fatalf("load module %s: %v: %s", name, err, out)
	}
}

// NoKernel skips a test in which no kernel takes part, such as one whose clock is made
// up, where tests run for the sake of a kernel (make vm): it passes elsewhere or nowhere.
func NoKernel(t testing.TB) {
	t.Helper()
	if os.Getenv("SOCKHEALTH_VM") != "" {
		t.Skip("no kernel takes part")
	}
}

// NeedIPv6 skips the test where the machine lacks IPv6 on purpose, and fails it
// where it lacks it otherwise and the test must run.
func NeedIPv6(t testing.TB) {
	t.Helper()
	switch {
	case lab.IPv6():
	case Without("ipv6"):
		t.Skip("needs IPv6")
	default:
		SkipOrFail(t, "needs IPv6, which is off")
	}
}

// Fewer returns n, or a fiftieth of it where tests are to be short (go test
// -short), as they are under an emulated kernel. It is for tests of volume.
func Fewer(n int) int {
	if testing.Short() {
		return max(n/50, 1)
	}
	return n
}

// Need ends the test where the kernel lacks a feature: err is what its use, or
// the loader, says of it. It is skipped where the kernel is older than the
// feature, and fails where it ought to have it. Any other error is none of its
// business.
func Need(t testing.TB, f kernel.Feature, err error) {
	t.Helper()
	if !Has(t, f, err) {
		t.Skipf("needs %s (Linux %s)", f, f.Since())
	}
}

// Has reports whether the kernel has the feature, as Need finds out, and fails
// the test where it ought to have it and has not.
func Has(t testing.TB, f kernel.Feature, err error) bool {
	t.Helper()
	if err == nil {
		return true
	}
	running, name, rerr := kernel.Running()
	if rerr != nil {
		t.Fatal(rerr)
	}
	if f.Expected(running) {
		t.Fatalf("%s has no %s, which Linux %s and later have: %v", name, f, f.Since(), err)
	}
	return false
}

// New builds a lab for this test.
func New(t testing.TB, opts lab.Options) *lab.Lab {
	t.Helper()
	Root(t)
	l, err := lab.New(opts)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := l.Close(); err != nil {
			t.Errorf("close lab: %v", err)
		}
	})
	return l
}

// Netns makes a namespace for this test, with nothing but its loopback device.
func Netns(t testing.TB) *netns.NS {
	t.Helper()
	Root(t)
	ns, err := netns.New()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = ns.Close() })
	return ns
}

// Cgroup makes a cgroup for this test. The test's process is not in it.
func Cgroup(t testing.TB) *lab.Cgroup {
	t.Helper()
	Root(t)
	c, err := lab.NewCgroup("test")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := c.Close(); err != nil {
			t.Errorf("close cgroup: %v", err)
		}
	})
	return c
}

// Enter moves the test's whole process into the cgroup until the test ends.
func Enter(t testing.TB, c *lab.Cgroup) {
	t.Helper()
	if err := c.Enter(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := c.Leave(); err != nil {
			t.Errorf("leave cgroup: %v", err)
		}
	})
}

// Fault takes what a lab's Drop and its kin return, and heals the fault when
// the test ends: labtest.Fault(t)(l.DropPort(7100)).
func Fault(t testing.TB) func(*lab.Fault, error) *lab.Fault {
	return func(f *lab.Fault, err error) *lab.Fault {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = f.Heal() })
		return f
	}
}

// Counter takes what a lab's Count returns: labtest.Counter(t)(l.Count(m)).
func Counter(t testing.TB) func(*lab.Counter, error) *lab.Counter {
	return func(c *lab.Counter, err error) *lab.Counter {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
		return c
	}
}

// Packets reads a *lab.Fault or a *lab.Counter.
func Packets(t testing.TB, c interface{ Packets() (uint64, error) }) uint64 {
	t.Helper()
	n, err := c.Packets()
	if err != nil {
		t.Fatal(err)
	}
	return n
}

// Heal ends a fault now.
func Heal(t testing.TB, f *lab.Fault) {
	t.Helper()
	if err := f.Heal(); err != nil {
		t.Fatal(err)
	}
}

// Eventually waits until cond is true and ends the test after the timeout with
// what was waited for.
func Eventually(t testing.TB, timeout time.Duration, cond func() bool, what string) {
	t.Helper()
	for deadline := time.Now().Add(timeout); ; {
		began := time.Now()
		if cond() {
			return
		}
		now := time.Now()
		if now.After(deadline) {
			t.Fatalf("waited %s in vain: %s", timeout, what)
		}
		// To ask must not be what keeps a slow machine from getting there.
		time.Sleep(min(max(2*time.Millisecond, 15*now.Sub(began)), 100*time.Millisecond))
	}
}

// NoLeak fails the test if it ends with other descriptors than it began with.
// Call it first, so that it looks last.
func NoLeak(t testing.TB) {
	t.Helper()
	before := descriptors(t)
	t.Cleanup(func() {
		for fd, target := range descriptors(t) {
			if before[fd] != target {
				t.Errorf("descriptor %s leaked: %s", fd, target)
			}
		}
	})
}
