// SPDX-License-Identifier: Apache-2.0

package api

import (
	"errors"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// reached reports whether who connects to the name comes to the listener.
func reached(t *testing.T, path string, l *net.UnixListener) bool {
	t.Helper()
	c, err := net.Dial("unix", path)
	if err != nil {
		return false
	}
	defer c.Close()
	limit := time.Now().Add(10 * time.Second)
	if err := errors.Join(c.SetDeadline(limit), l.SetDeadline(limit)); err != nil {
		t.Fatal(err)
	}
	got := make(chan bool, 1)
	go func() {
		c, err := l.Accept()
		if err == nil {
			_ = c.Close()
		}
		got <- err == nil
	}()
	if _, err := c.Read(make([]byte, 1)); err == nil {
		t.Error("read a byte")
	}
	return <-got
}

// However a name comes to lead elsewhere it is noticed, and the socket can be made again.
func TestReach(t *testing.T) {
	foreign := filepath.Join(tempDir(t), "foreign")
	other, err := net.ListenUnix("unix", &net.UnixAddr{Name: foreign, Net: "unix"})
	if err != nil {
		t.Fatal(err)
	}
	defer other.Close()
	for _, tc := range []struct {
		what, name, says string
		harm             func(run string) error
	}{
		{"report.sock removed", ReportSocket, "was removed", func(run string) error { return os.Remove(filepath.Join(run, ReportSocket)) }},
		{"its socket removed", ReportSocket, "was removed", func(run string) error { return os.Remove(filepath.Join(run, ReportDir, ReportSocket)) }},
		{"its directory removed", ReportSocket, "was removed", func(run string) error { return os.RemoveAll(filepath.Join(run, ReportDir)) }},
		{"report.sock replaced", ReportSocket, "was replaced", func(run string) error {
			path := filepath.Join(run, ReportDir, ReportSocket)
			_ = os.Remove(path)
			return os.Link(foreign, path)
		}},
		{"admin.sock removed", AdminSocket, "was removed", func(run string) error { return os.Remove(filepath.Join(run, AdminSocket)) }},
		{"all removed", AdminSocket, "was removed", os.RemoveAll},
		{"all moved", ReportSocket, "was removed", func(run string) error { return os.Rename(run, run+".old") }},
	} {
		t.Run(tc.what, func(t *testing.T) {
			run := filepath.Join(tempDir(t), "run")
			dir, err := OpenRunDir(run)
			if err != nil {
				t.Fatal(err)
			}
			for _, listen := range []func() (*net.UnixListener, error){dir.ListenAdmin, dir.ListenReports} {
				l, err := listen()
				if err != nil {
					t.Fatal(err)
				}
				defer l.Close()
			}
			if err := dir.Check(tc.name); err != nil {
				t.Errorf("at first: %v", err)
			}
			if err := tc.harm(run); err != nil {
				t.Fatal(err)
			}
			if err := dir.Check(tc.name); err == nil || !strings.Contains(err.Error(), tc.says) {
				t.Errorf("then: %v, want %q", err, tc.says)
			}
			wantMadeAgain(t, dir, run, tc.name)
			if _, err := OpenRunDir(run); err == nil {
				t.Error("another agent could take the directory")
			}
			if err := dir.Close(); err != nil {
				t.Error(err)
			}
		})
	}
}

// wantMadeAgain makes a socket again, and reaches it.
func wantMadeAgain(t *testing.T, dir *RunDir, run, name string) {
	t.Helper()
	l, err := dir.Again(name)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = l.Close() })
	if err := dir.Check(name); err != nil {
		t.Errorf("made again: %v", err)
	}
	if !reached(t, filepath.Join(run, name), l) {
		t.Error("nobody is reached")
	}
}
