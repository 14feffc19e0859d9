// SPDX-License-Identifier: Apache-2.0

package census

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/sockhealth/sockhealth/internal/container"
	"github.com/sockhealth/sockhealth/internal/lab"
	"github.com/sockhealth/sockhealth/internal/lab/labtest"
	"github.com/sockhealth/sockhealth/internal/loader"
)

const pod = "a5c1f8d5-1919-434d-add7-4afaafdaef89"

// docker is the n-th container's.
func docker(n int) container.ID { return container.ID{Container: fmt.Sprintf("%064x", n)} }

func fresh(t testing.TB) *Census {
	t.Helper()
	labtest.Root(t)
	root, err := loader.CgroupRoot()
	if err != nil {
		labtest.SkipOrFail(t, err.Error())
	}
	c, err := New(root)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := c.Close(); err != nil {
			t.Error(err)
		}
	})
	return c
}

// mkdir makes a cgroup below another and returns its id.
func mkdir(t testing.TB, g *lab.Cgroup, path ...string) uint64 {
	t.Helper()
	dir := filepath.Join(append([]string{g.Path}, path...)...)
	if err := os.MkdirAll(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	info, err := os.Stat(dir)
	if err != nil {
		t.Fatal(err)
	}
	return info.Sys().(*syscall.Stat_t).Ino
}

func want(t *testing.T, c *Census, id uint64, who container.ID) {
	t.Helper()
	if got := c.Of(id); got != who {
		t.Errorf("cgroup %d: got %+v, want %+v", id, got, who)
	}
}

func TestOf(t *testing.T) {
	c, g := fresh(t), labtest.Cgroup(t)
	want(t, c, 0, container.ID{})
	want(t, c, 1, container.ID{}) // the root
	want(t, c, mkdir(t, g, "docker-"+docker(1).Container+".scope"), docker(1))
	want(t, c, mkdir(t, g, "kubepods", "pod"+pod, docker(2).Container), container.ID{Container: docker(2).Container, Pod: pod})
	want(t, c, mkdir(t, g, "system.slice", "nginx.service"), container.ID{})
	// One that is inside the container.
	want(t, c, mkdir(t, g, "docker-"+docker(1).Container+".scope", "init.scope"), docker(1))
}

// rested lets the next walk begin at once, however long the last one took.
func (c *Census) rested() {
	c.walking.Lock()
	defer c.walking.Unlock()
	c.next = time.Time{}
}

// What is gone is remembered where it was seen, by a question or by a walk.
func TestGone(t *testing.T) {
	c, g := fresh(t), labtest.Cgroup(t)
	var ids [3]uint64
	dir := func(n int) string { return "only.slice/docker-" + docker(n).Container + ".scope" }
	for n := range 2 { // each alone in its directory
		ids[n] = mkdir(t, g, dir(n))
		c.rested()
		c.walk()
		if err := os.Remove(filepath.Join(g.Path, dir(n))); err != nil {
			t.Fatal(err)
		}
	}
	ids[2] = mkdir(t, g, dir(2))
	asked := mkdir(t, g, dir(3))
	want(t, c, asked, docker(3))
	for _, n := range []int{2, 3} {
		if err := os.Remove(filepath.Join(g.Path, dir(n))); err != nil {
			t.Fatal(err)
		}
	}
	want(t, c, ids[0], docker(0))
	want(t, c, ids[1], docker(1))
	want(t, c, asked, docker(3))
	want(t, c, ids[2], container.ID{})
	if _, ok := c.recall(ids[2]); !ok {
		t.Error("that a cgroup is gone is not remembered: each of its sockets asks the kernel again")
	}
	// Another of that name is another.
	again := mkdir(t, g, dir(0))
	if again == ids[0] {
		t.Errorf("id %d was given twice", again)
	}
	want(t, c, again, docker(0))
}

// What could not be asked for once is asked for again.
func TestTransient(t *testing.T) {
	c, g := fresh(t), labtest.Cgroup(t)
	id := mkdir(t, g, docker(1).Container)
	var limit, none unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &limit); err != nil {
		t.Fatal(err)
	}
	none.Max = limit.Max
	if err := unix.Setrlimit(unix.RLIMIT_NOFILE, &none); err != nil {
		t.Fatal(err)
	}
	got := c.Of(id)
	if err := unix.Setrlimit(unix.RLIMIT_NOFILE, &limit); err != nil {
		t.Fatal(err)
	}
	if got != (container.ID{}) {
		t.Fatalf("without a descriptor: got %+v", got)
	}
	want(t, c, id, docker(1))
}

// Without CAP_DAC_READ_SEARCH walks find what there is.
func TestUnprivileged(t *testing.T) {
	c, g := fresh(t), labtest.Cgroup(t)
	first := mkdir(t, g, docker(1).Container)
	type answers struct{ first, second container.ID }
	done := make(chan answers)
	go func() {
		runtime.LockOSThread() // and never unlocked: the thread ends with its capabilities
		drop(t, unix.CAP_DAC_READ_SEARCH)
		got := answers{first: c.Of(first)}
		second := mkdir(t, g, docker(2).Container)
		c.rested()
		got.second = c.Of(second)
		done <- got
	}()
	got := <-done
	if got != (answers{docker(1), docker(2)}) {
		t.Errorf("got %+v", got)
	}
}

// drop takes a capability from the calling thread.
func drop(t *testing.T, capability int) {
	header := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
	var data [2]unix.CapUserData
	if err := unix.Capget(&header, &data[0]); err != nil {
		t.Error(err)
		return
	}
	data[capability/32].Effective &^= 1 << (capability % 32)
	if err := unix.Capset(&header, &data[0]); err != nil {
		t.Error(err)
	}
}

func TestWatch(t *testing.T) {
	c, g := fresh(t), labtest.Cgroup(t)
	first := mkdir(t, g, docker(1).Container)
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan struct{})
	go func() { defer close(done); c.Watch(ctx) }()
	known := func(id uint64, who container.ID) func() bool {
		return func() bool {
			got, ok := c.recall(id)
			return ok && got == who
		}
	}
	labtest.Eventually(t, 10*time.Second, known(first, docker(1)), "the first walk")
	second := mkdir(t, g, docker(2).Container)
	c.rested()
	c.Wake()
	// Less than walks stand apart that nobody asks for.
	labtest.Eventually(t, every/2, known(second, docker(2)), "a walk that was asked for")
	cancel()
	<-done
}

// Walks stand apart, whoever asks for them.
func TestPace(t *testing.T) {
	c := fresh(t)
	began := time.Now()
	if wait := c.walk(); wait != 0 {
		t.Fatalf("the first walk is %s early", wait)
	}
	ended := time.Now()
	least, most := began.Add(leastPause), ended.Add(max(leastPause, share*ended.Sub(began)))
	if c.next.Before(least) || c.next.After(most) {
		t.Errorf("a walk of at most %s is followed by one %s after its end", ended.Sub(began), c.next.Sub(ended))
	}
	c.next = ended.Add(time.Hour)
	if wait := c.walk(); wait <= 0 || wait > time.Hour {
		t.Errorf("a walk an hour early is said to be %s early", wait)
	}
}

func TestMemory(t *testing.T) {
	m := newMemory(3)
	for n := range 3 {
		m.put(uint64(n), docker(n))
	}
	m.get(0)
	m.put(1, docker(9))
	m.put(3, docker(3)) // forgets 2
	for n, who := range map[uint64]container.ID{0: docker(0), 1: docker(9), 3: docker(3)} {
		if got, ok := m.get(n); !ok || got != who {
			t.Errorf("%d: got %+v, %t", n, got, ok)
		}
	}
	if _, ok := m.get(2); ok || len(m.by) != 3 || m.order.Len() != 3 {
		t.Errorf("kept %d of %d", len(m.by), m.order.Len())
	}
}

// BenchmarkOf asks for cgroups that are not remembered, BenchmarkWalk walks over
// a thousand.
func BenchmarkOf(b *testing.B) {
	c, g := fresh(b), labtest.Cgroup(b)
	id := mkdir(b, g, docker(1).Container)
	for b.Loop() {
		c.known = newMemory(1)
		if c.Of(id) != docker(1) {
			b.Fatal("not found")
		}
	}
}

func BenchmarkWalk(b *testing.B) {
	c, g := fresh(b), labtest.Cgroup(b)
	const pods = 250
	for n := range pods {
		slice := "kubepods-pod" + strings.ReplaceAll(fmt.Sprintf("a5c1f8d5-1919-434d-add7-%012x", n), "-", "_") + ".slice"
		for i := range 3 {
			mkdir(b, g, slice, "cri-containerd-"+docker(4*n+i).Container+".scope")
		}
	}
	for b.Loop() {
		c.rested()
		c.walk()
	}
	b.ReportMetric(float64(b.Elapsed().Microseconds())/float64(b.N)/(4*pods), "µs/cgroup")
}
