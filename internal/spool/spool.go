// SPDX-License-Identifier: Apache-2.0

package spool

import (
	"io"
	"sync"
	"time"
)

// MaxKept bounds the bytes that wait to be written.
const MaxKept = 4 << 20

// Writer is an io.Writer that never waits. Use New.
type Writer struct {
	out io.Writer
	// wake tells the goroutine that there is something to do.
	wake chan struct{}
	// done closes once everything is written after Close.
	done chan struct{}

	mu      sync.Mutex
	lines   [][]byte // one a Write
	kept    int      // bytes that are not written, with the line that is being written
	dropped uint64
	closed  bool
}

// New returns a writer whose lines a goroutine writes to out, in order and each by
// one Write. Nobody else should write there before Close. What out returns as an error
// is passed over, as there is nowhere to tell it.
func New(out io.Writer) *Writer {
	w := &Writer{out: out, wake: make(chan struct{}, 1), done: make(chan struct{})}
	go w.run()
	return w
}

// Write takes a copy of a line. It never fails: a line for which there is no room, or
// that comes after Close, is dropped and counted.
func (w *Writer) Write(line []byte) (int, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if len(line) == 0 {
		return 0, nil
	}
	if w.closed || w.kept+len(line) > MaxKept {
		w.dropped++
		return len(line), nil
	}
	w.lines = append(w.lines, append([]byte(nil), line...))
	w.kept += len(line)
	w.rouse()
	return len(line), nil
}

// Dropped returns how many lines were dropped.
func (w *Writer) Dropped() uint64 {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.dropped
}

// Close takes no more lines, waits until those that it has are written, and reports
// whether that was within the time. It does not close what they are written to.
func (w *Writer) Close(within time.Duration) bool {
	w.mu.Lock()
	w.closed = true
	w.rouse()
	w.mu.Unlock()
	timer := time.NewTimer(within)
	defer timer.Stop()
	select {
	case <-w.done:
		return true
	case <-timer.C:
		return false
	}
}

// rouse wakes the goroutine.
func (w *Writer) rouse() {
	select {
	case w.wake <- struct{}{}:
	default: // it will look anyway
	}
}

// run writes until there is nothing left after Close.
func (w *Writer) run() {
	defer close(w.done)
	for range w.wake {
		for {
			line, end := w.next()
			if end {
				return
			}
			if line == nil {
				break
			}
			_, _ = w.out.Write(line)
			w.written(len(line))
		}
	}
}

// next returns the line whose turn it is, nil where there is none now, and whether
// there will be none any more.
func (w *Writer) next() (line []byte, end bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if len(w.lines) == 0 {
		w.lines = nil // give back what a burst took
		return nil, w.closed
	}
	line, w.lines[0] = w.lines[0], nil
	w.lines = w.lines[1:]
	return line, false
}

func (w *Writer) written(n int) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.kept -= n
}
