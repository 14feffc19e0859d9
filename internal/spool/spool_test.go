// SPDX-License-Identifier: Apache-2.0

package spool

import (
	"bytes"
	"fmt"
	"io"
	"strings"
	"testing"
	"time"

	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// Lines come out in order, and all of them before Close returns.
func TestOrder(t *testing.T) {
	var out bytes.Buffer
	w := New(&out)
	var want strings.Builder
	buf := make([]byte, 0, 16) // as a handler uses one again
	for i := range 1000 {
		buf = fmt.Appendf(buf[:0], "line %d\n", i)
		want.Write(buf)
		if n, err := w.Write(buf); n != len(buf) || err != nil {
			t.Fatalf("wrote %d bytes, %v", n, err)
		}
	}
	if !w.Close(time.Minute) {
		t.Fatal("not written in time")
	}
	if out.String() != want.String() || w.Dropped() != 0 {
		t.Errorf("dropped %d, wrote %q", w.Dropped(), out.String())
	}
	if _, err := w.Write([]byte("late\n")); err != nil || w.Dropped() != 1 {
		t.Errorf("after Close: %v, dropped %d, want 1", err, w.Dropped())
	}
}

// Where nobody reads no line waits: what is over the bound is dropped and counted, the
// rest comes out once somebody reads.
func TestStuck(t *testing.T) {
	r, out := io.Pipe()
	w := New(out)
	line := bytes.Repeat([]byte("x"), 1<<10)
	const room = MaxKept >> 10
	written := make(chan struct{})
	go func() {
		defer close(written)
		for range room + 7 {
			_, _ = w.Write(line)
		}
	}()
	select {
	case <-written:
	case <-time.After(time.Minute):
		t.Fatal("a line waits for the reader")
	}
	if n := w.Dropped(); n != 7 {
		t.Errorf("dropped %d lines, want 7", n)
	}
	if w.Close(10 * time.Millisecond) {
		t.Error("closed although nothing is written")
	}
	read := make(chan int)
	go func() {
		b, _ := io.ReadAll(r)
		read <- len(b)
	}()
	if !w.Close(time.Minute) {
		t.Error("not written although somebody reads")
	}
	_ = out.Close()
	if n := <-read; n != MaxKept {
		t.Errorf("read %d bytes, want %d", n, MaxKept)
	}
}

// What was written gives its room back.
func TestRoom(t *testing.T) {
	w := New(io.Discard)
	for i := range 4 {
		_, _ = w.Write(make([]byte, MaxKept))
		for began := time.Now(); ; time.Sleep(time.Millisecond) {
			w.mu.Lock()
			kept := w.kept
			w.mu.Unlock()
			if kept == 0 {
				break
			}
			if time.Since(began) > time.Minute {
				t.Fatalf("line %d is kept", i)
			}
		}
	}
	if n := w.Dropped(); n != 0 || !w.Close(time.Minute) {
		t.Errorf("dropped %d", n)
	}
}
