// SPDX-License-Identifier: Apache-2.0

package api

import (
	"errors"
	"io/fs"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/sockhealth/sockhealth/internal/lab/labtest"
)

// Root is answered beside the agent, and not in a container: in a pid namespace below.
func TestAdminIsForTheNode(t *testing.T) {
	labtest.Root(t)
	socket := serve(t, newAdmin(t, &fixed{}), AdminSocket, 0o600)
	for _, tc := range []struct {
		name  string
		flags uintptr
		want  string // of the answer
	}{
		{"beside", 0, "HTTP/1.1 200 "},
		{"in another network namespace", syscall.CLONE_NEWNET, "HTTP/1.1 200 "},
		{"in another mount namespace", syscall.CLONE_NEWNS, "HTTP/1.1 200 "},
		{"in another pid namespace", syscall.CLONE_NEWPID, "HTTP/1.1 403 "},
	} {
		t.Run(tc.name, func(t *testing.T) {
			cmd := exec.Command("/proc/self/exe")
			cmd.Env = append(os.Environ(), clientOf+"="+socket)
			cmd.Stdin = strings.NewReader("GET /v1/status HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
			cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: tc.flags}
			out, err := cmd.Output()
			if err != nil || !strings.HasPrefix(string(out), tc.want) {
				t.Fatalf("%v, answer %q, want %q", err, out, tc.want)
			}
			refused := errorBody("the admin socket is for root of this node, you are in a container [report on report.sock, or ask from the agent's own pid namespace]")
			if strings.Contains(tc.want, "403") && !strings.HasSuffix(string(out), refused) {
				t.Errorf("answer %q, want %q", out, refused)
			}
		})
	}
}

// One that the kernel gives no pid of is neither here nor below, and one that has ended
// is not known.
func TestBeside(t *testing.T) {
	labtest.Root(t)
	if err := beside(0); !errors.Is(err, errElsewhere) {
		t.Errorf("no pid: %v", err)
	}
	if err := beside(int32(os.Getpid())); err != nil {
		t.Errorf("this process: %v", err)
	}
	cmd := exec.Command("true")
	if err := cmd.Run(); err != nil {
		t.Fatal(err)
	}
	if err := beside(int32(cmd.Process.Pid)); err == nil || errors.Is(err, errElsewhere) {
		t.Errorf("an ended process: %v", err)
	}
}

// Who connected and has ended by the time that it is looked at is not taken for who has
// its pid now.
func TestStillThere(t *testing.T) {
	labtest.Root(t)
	path := filepath.Join(tempDir(t), "s")
	l, err := net.ListenUnix("unix", &net.UnixAddr{Name: path, Net: "unix"})
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	cmd := exec.Command("/proc/self/exe")
	cmd.Env = append(os.Environ(), clientOf+"="+path)
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	defer cmd.Process.Kill()
	l.SetDeadline(time.Now().Add(time.Minute))
	theirs, err := l.AcceptUnix()
	if err != nil {
		t.Fatal(err)
	}
	defer theirs.Close()
	if err := stillThere(theirs); err != nil {
		t.Errorf("who waits for an answer: %v", err)
	}
	can := hasPeerPidfd(t, theirs)
	_ = cmd.Process.Kill()
	if err := unix.Waitid(unix.P_PID, cmd.Process.Pid, nil, unix.WEXITED|unix.WNOWAIT, nil); err != nil {
		t.Fatal(err)
	}
	if err := stillThere(theirs); (err != nil) != can {
		t.Errorf("who has ended: %v, SO_PEERPIDFD %t", err, can)
	}
	_ = cmd.Wait()
	if err := stillThere(theirs); (err != nil) != can {
		t.Errorf("who is gone: %v, SO_PEERPIDFD %t", err, can)
	}
}

// hasPeerPidfd reports whether the kernel has SO_PEERPIDFD (Linux 6.5).
func hasPeerPidfd(t *testing.T, c *net.UnixConn) bool {
	t.Helper()
	raw, err := c.SyscallConn()
	if err != nil {
		t.Fatal(err)
	}
	var pidfd int
	ctlErr := raw.Control(func(fd uintptr) { pidfd, err = unix.GetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_PEERPIDFD) })
	if ctlErr != nil {
		t.Fatal(ctlErr)
	}
	if err == nil {
		_ = unix.Close(pidfd)
	}
	return !errors.Is(err, unix.ENOPROTOOPT)
}

// The report socket has a directory of its own, which a container that was given it still
// has when the next agent has made its socket; the link leads to the same one.
func TestReportDirOutlivesTheAgent(t *testing.T) {
	labtest.Root(t)
	path := filepath.Join(tempDir(t), "run")
	var held *os.File
	for range 2 {
		dir, err := OpenRunDir(path)
		if err != nil {
			t.Fatal(err)
		}
		l, err := dir.ListenReports()
		if err != nil {
			t.Fatal(err)
		}
		defer l.Close()
		if held == nil {
			if held, err = os.OpenFile(filepath.Join(path, ReportDir), unix.O_PATH|os.O_RDONLY, 0); err != nil {
				t.Fatal(err)
			}
			defer held.Close()
		}
		wantMode(t, filepath.Join(path, ReportDir), fs.ModeDir|0o755)
		wantMode(t, filepath.Join(path, ReportDir, ReportSocket), fs.ModeSocket|0o666)
		for _, socket := range []string{
			"/proc/self/fd/" + strconv.Itoa(int(held.Fd())) + "/" + ReportSocket,
			filepath.Join(path, ReportSocket),
		} {
			c, err := net.Dial("unix", socket)
			if err != nil {
				t.Fatal(err)
			}
			c.Close()
		}
		l.Close()
		if err := dir.Close(); err != nil {
			t.Fatal(err)
		}
		if left, _ := os.ReadDir(filepath.Join(path, ReportDir)); len(left) > 0 {
			t.Errorf("left in the report directory: %v", left)
		}
		if left, _ := os.ReadDir(path); len(left) != 2 || left[0].Name() != lockFile || left[1].Name() != ReportDir {
			t.Errorf("left behind: %v, want the lock file and the report directory", left)
		}
	}
}

// What a container that may write to the report directory has left there does not keep the
// next agent from its socket.
func TestReportDirTakenBack(t *testing.T) {
	labtest.Root(t)
	path := tempDir(t)
	dir, err := OpenRunDir(path)
	if err != nil {
		t.Fatal(err)
	}
	defer dir.Close()
	inner := filepath.Join(path, ReportDir)
	if err := os.MkdirAll(filepath.Join(inner, ReportSocket, "nested"), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.Chmod(inner, 0o777); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(inner, ReportSocket+".new"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	l, err := dir.ListenReports()
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	wantMode(t, inner, fs.ModeDir|0o755)
	wantMode(t, filepath.Join(inner, ReportSocket), fs.ModeSocket|0o666)
}

// What stands in the way of the link is left, unless it is an older agent's socket.
func TestReportLinkInTheWay(t *testing.T) {
	path := tempDir(t)
	dir, err := OpenRunDir(path)
	if err != nil {
		t.Fatal(err)
	}
	defer dir.Close()
	link := filepath.Join(path, ReportSocket)
	if err := os.WriteFile(link, []byte("precious"), 0o644); err != nil {
		t.Fatal(err)
	}
	if l, err := dir.ListenReports(); err == nil || !strings.HasSuffix(err.Error(), "is in the way and no socket [remove it]") {
		t.Errorf("got %v, %v", l, err)
	}
	if b, err := os.ReadFile(link); err != nil || string(b) != "precious" {
		t.Errorf("what was there: %q, %v", b, err)
	}
	if err := os.Remove(link); err != nil {
		t.Fatal(err)
	}
	old, err := net.ListenUnix("unix", &net.UnixAddr{Name: link, Net: "unix"})
	if err != nil {
		t.Fatal(err)
	}
	old.SetUnlinkOnClose(false)
	old.Close()
	l, err := dir.ListenReports()
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	if to, err := os.Readlink(link); err != nil || to != "report/report.sock" {
		t.Errorf("it leads to %q, %v", to, err)
	}
}
