// SPDX-License-Identifier: Apache-2.0

package demo

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/sockhealth/sockhealth/internal/lab/labtest"
)

func newTestSpawner(t *testing.T) *spawner {
	s := newSpawner("/proc/self/exe")
	t.Cleanup(s.close)
	return s
}

func TestProcessIsStoppedAndHeard(t *testing.T) {
	heard := make(chan string, 1)
	p, err := newTestSpawner(t).start(command{
		name: "child", args: []string{playWait},
		line: func(line []byte) { heard <- string(line) },
	})
	if err != nil {
		t.Fatal(err)
	}
	if got := <-heard; got != "here" {
		t.Errorf("heard %q", got)
	}
	ctx, cancel := context.WithCancelCause(context.Background())
	enough := errors.New("enough")
	cancel(enough)
	if err := p.await(ctx, nil); !errors.Is(err, enough) {
		t.Errorf("await after the end of ctx: %v", err)
	}
	began := time.Now()
	p.stop()
	if took := time.Since(began); took > stopTimeout {
		t.Errorf("SIGTERM took %s", took)
	}
	if !p.wait(0) && !p.wait(time.Second) {
		t.Error("stop returned before the end")
	}
}

// A process that is paused can neither hear SIGTERM nor end by itself.
func TestPausedProcessIsStopped(t *testing.T) {
	heard := make(chan struct{})
	p, err := newTestSpawner(t).start(command{
		name: "child", args: []string{playWait},
		line: func([]byte) { close(heard) },
	})
	if err != nil {
		t.Fatal(err)
	}
	<-heard
	if err := p.pause(t.Context()); err != nil {
		t.Fatal(err)
	}
	if p.hasEnded() {
		t.Error("paused means ended")
	}
	began := time.Now()
	p.stop()
	if took := time.Since(began); took >= stopTimeout {
		t.Errorf("SIGTERM took %s", took)
	}
	if err := p.pause(t.Context()); err == nil {
		t.Error("paused after its end")
	}
}

func TestProcessThatEndsIsTold(t *testing.T) {
	p, err := newTestSpawner(t).start(command{name: "child", args: []string{playFail}})
	if err != nil {
		t.Fatal(err)
	}
	err = p.await(context.Background(), nil)
	if want := "child ended: exit status 1: no such luck"; err == nil || err.Error() != want {
		t.Errorf("%v, want %s", err, want)
	}
	if got := p.log.String(); got != "so it begins\nno such luck\n" {
		t.Errorf("log %q", got)
	}
}

func TestNoSuchBinary(t *testing.T) {
	s := newSpawner("/nonexistent/sockhealth")
	defer s.close()
	if _, err := s.start(command{name: "child"}); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("%v", err)
	}
}

// A demo that is killed cannot clean up: the kernel ends its processes and the
// janitor removes the rest.
func TestNothingIsLeftOfAKilledDemo(t *testing.T) {
	labtest.Root(t)
	heard := make(chan string, 1)
	p, err := newTestSpawner(t).start(command{
		name: "demo", args: []string{playStage},
		line: func(line []byte) { heard <- string(line) },
	})
	if err != nil {
		t.Fatal(err)
	}
	defer p.kill()
	var dir, cgroup string
	var child, janitor int
	select {
	case line := <-heard:
		if _, err := fmt.Sscan(line, &dir, &cgroup, &child, &janitor); err != nil {
			t.Fatalf("%q: %v", line, err)
		}
	case <-p.done:
		t.Fatal(p.ended())
	}
	for _, path := range []string{dir, cgroup} {
		if _, err := os.Stat(path); err != nil {
			t.Fatal(err)
		}
	}
	if !alive(child) || !alive(janitor) {
		t.Fatal("the demo runs without its processes")
	}
	p.kill()
	for what, left := range map[string]func() bool{
		"the folder goes":    func() bool { _, err := os.Stat(dir); return err == nil },
		"the cgroup goes":    func() bool { _, err := os.Stat(cgroup); return err == nil },
		"the child ends":     func() bool { return alive(child) },
		"the janitor leaves": func() bool { return alive(janitor) },
	} {
		labtest.Eventually(t, 10*time.Second, func() bool { return !left() }, what)
	}
}

// alive is false for a process that only nobody has reaped yet.
func alive(pid int) bool {
	if syscall.Kill(pid, 0) != nil {
		return false
	}
	stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	return err == nil && !strings.Contains(string(stat), ") Z ")
}
