// SPDX-License-Identifier: Apache-2.0

package api

import (
	"net"
	"net/http"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/sockhealth/sockhealth/internal/lab/labtest"
	"github.com/sockhealth/sockhealth/internal/netns"
)

// someone is a user that is neither root nor the owner of anything.
const someone = 12345

// inNewUserNamespace makes cmd a process in a user and a network namespace of its
// own, both made by that user, and starts it.
func inNewUserNamespace(t *testing.T, uid int, cmd *exec.Cmd) {
	t.Helper()
	cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWUSER | syscall.CLONE_NEWNET}
	var err error
	asUser(t, uid, func() { err = cmd.Start() })
	if err != nil {
		t.Fatalf("start a process in a user namespace: %v", err)
	}
}

// userNetns returns a network namespace that belongs to a user namespace which
// that user made.
func userNetns(t *testing.T, uid int) *netns.NS {
	t.Helper()
	cmd := exec.Command("cat")
	hold, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	inNewUserNamespace(t, uid, cmd)
	defer func() {
		_ = hold.Close()
		_ = cmd.Wait()
	}()
	ns, err := netns.Open("/proc/" + strconv.Itoa(cmd.Process.Pid) + "/ns/net")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = ns.Close() })
	return ns
}

// dialFromAs connects from a namespace as a user.
func dialFromAs(t *testing.T, ns *netns.NS, uid int, socket string) (c net.Conn) {
	t.Helper()
	err := ns.Do(func() error {
		if err := setEUID(uid); err != nil {
			return err
		}
		c = dial(t, socket)
		return setEUID(0)
	})
	if err != nil {
		t.Fatal(err)
	}
	return c
}

// Who is heard about a whole namespace: the owner of its user namespace, which is
// root where that is the initial one, but nobody in the host's own.
func TestOwner(t *testing.T) {
	labtest.Root(t)
	asked := make(chan seen, 1)
	socket := serve(t, NewReports(watch(asked, nil, nil), quiet()), ReportSocket, 0o666)
	host, err := netns.Current()
	if err != nil {
		t.Fatal(err)
	}
	defer host.Close()
	plain := labtest.Netns(t)                              // as a container without user namespaces has
	owned, roots := userNetns(t, someone), userNetns(t, 0) // as one with them has
	for _, tc := range []struct {
		name string
		ns   *netns.NS
		uid  int
		want bool
	}{
		{"root on the host", host, 0, false},
		{"a user on the host", host, someone, false},
		{"root in a namespace of the initial user namespace", plain, 0, true},
		{"a user in a namespace of the initial user namespace", plain, someone, false},
		{"who made the user namespace", owned, someone, true},
		{"another user in it", owned, someone + 1, false},
		{"root in a user's user namespace", owned, 0, false},
		{"root in its own user namespace", roots, 0, true},
		{"a user in root's user namespace", roots, someone, false},
	} {
		t.Run(tc.name, func(t *testing.T) {
			c := dialFromAs(t, tc.ns, tc.uid, socket)
			if resp, body := talk(t, c, post("/v1/reports", exampleReport)); resp.StatusCode != 200 {
				t.Fatalf("status %d, body %s", resp.StatusCode, body)
			}
			got := <-asked
			if got.Caller.Owner != tc.want || got.inode != tc.ns.Inode() || got.Caller.UID != uint32(tc.uid) {
				t.Errorf("owner %v, netns %d, user %d; want %v, %d, %d",
					got.Caller.Owner, got.inode, got.Caller.UID, tc.want, tc.ns.Inode(), tc.uid)
			}
		})
	}
}

// A process that is root in its own user namespace, and nobody outside.
func TestOwnerIsAProcessInAUserNamespace(t *testing.T) {
	labtest.Root(t)
	asked := make(chan seen, 1)
	socket := serve(t, NewReports(watch(asked, nil, nil), quiet()), ReportSocket, 0o666)
	cmd := exec.Command("/proc/self/exe")
	cmd.Env = append(os.Environ(), clientOf+"="+socket)
	cmd.Stdin = strings.NewReader(strings.Replace(post("/v1/reports", exampleReport), "Host: x", "Host: x\r\nConnection: close", 1))
	var out, errs strings.Builder
	cmd.Stdout, cmd.Stderr = &out, &errs
	inNewUserNamespace(t, someone, cmd)
	if err := cmd.Wait(); err != nil || !strings.HasPrefix(out.String(), "HTTP/1.1 200 ") {
		t.Fatalf("client: %v, %s, answer %s", err, &errs, &out)
	}
	got := <-asked
	if !got.Caller.Owner || got.Caller.UID != someone || got.Caller.PID != int32(cmd.Process.Pid) {
		t.Errorf("owner %v, user %d, pid %d; want true, %d, %d", got.Caller.Owner, got.Caller.UID, got.Caller.PID, someone, cmd.Process.Pid)
	}
}

// passOn sends a connection's descriptor through a Unix socket, and returns the
// connection as whoever received it has it.
func passOn(t *testing.T, c net.Conn) net.Conn {
	t.Helper()
	file, err := c.(*net.UnixConn).File()
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	ends, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(ends[0])
	defer unix.Close(ends[1])
	if err := unix.Sendmsg(ends[0], []byte{1}, unix.UnixRights(int(file.Fd())), nil, 0); err != nil {
		t.Fatal(err)
	}
	oob := make([]byte, unix.CmsgSpace(4))
	_, n, _, _, err := unix.Recvmsg(ends[1], make([]byte, 1), oob, unix.MSG_CMSG_CLOEXEC)
	if err != nil {
		t.Fatal(err)
	}
	msgs, err := unix.ParseSocketControlMessage(oob[:n])
	if err != nil {
		t.Fatal(err)
	}
	fds, err := unix.ParseUnixRights(&msgs[0])
	if err != nil {
		t.Fatal(err)
	}
	received := os.NewFile(uintptr(fds[0]), "passed on")
	defer received.Close()
	out, err := net.FileConn(received)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = out.Close() })
	return out
}

// A descriptor that was passed on speaks for who connected, whoever holds it: it
// gives a user nothing that it had not, and takes from root what it had.
func TestPassedDescriptorSpeaksForWhoConnected(t *testing.T) {
	labtest.Root(t)
	asked := make(chan seen, 1)
	socket := serve(t, NewReports(watch(asked, nil, nil), quiet()), ReportSocket, 0o666)
	from, to := labtest.Netns(t), labtest.Netns(t)
	for _, tc := range []struct {
		name            string
		connects, holds int
		owner           bool
	}{
		{"a user's, with root", someone, 0, false},
		{"a user's, with another", someone, someone + 1, false},
		{"root's, with a user", 0, someone, true},
	} {
		t.Run(tc.name, func(t *testing.T) {
			theirs := dialFromAs(t, from, tc.connects, socket)
			var status int
			err := to.Do(func() error {
				if err := setEUID(tc.holds); err != nil {
					return err
				}
				resp, _ := talk(t, passOn(t, theirs), post("/v1/reports", exampleReport))
				status = resp.StatusCode
				return setEUID(0)
			})
			if err != nil || status != http.StatusOK {
				t.Fatalf("%v, status %d", err, status)
			}
			got := <-asked
			if got.inode != from.Inode() || got.Caller.UID != uint32(tc.connects) || got.Caller.Owner != tc.owner {
				t.Errorf("netns %d, user %d, owner %v; want who connected: %d, %d, %v",
					got.inode, got.Caller.UID, got.Caller.Owner, from.Inode(), tc.connects, tc.owner)
			}
		})
	}
}

// A socket that somebody else made and the caller connected: the namespace is
// that of who made it, the user is who connected.
func TestSocketMadeElsewhere(t *testing.T) {
	labtest.Root(t)
	asked := make(chan seen, 1)
	socket := serve(t, NewReports(watch(asked, nil, nil), quiet()), ReportSocket, 0o666)
	made := labtest.Netns(t)
	fd := -1
	if err := made.Do(func() (err error) {
		fd, err = unix.Socket(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
		return err
	}); err != nil {
		t.Fatal(err)
	}
	var err error
	asUser(t, someone, func() { err = unix.Connect(fd, &unix.SockaddrUnix{Name: socket}) })
	file := os.NewFile(uintptr(fd), "made elsewhere")
	defer file.Close()
	if err != nil {
		t.Fatal(err)
	}
	c, err := net.FileConn(file)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	talk(t, c, post("/v1/reports", exampleReport))
	got := <-asked
	if got.inode != made.Inode() || got.Caller.UID != someone || got.Caller.Owner {
		t.Errorf("netns %d, user %d, owner %v; want %d, %d, false", got.inode, got.Caller.UID, got.Caller.Owner, made.Inode(), someone)
	}
}

// Where it is not known which namespaces are the host's, nobody owns any.
func TestOwnersUnknown(t *testing.T) {
	labtest.Root(t)
	asked := make(chan seen, 1)
	s := NewReports(watch(asked, nil, nil), quiet())
	reportsOf(s).owners = owners{}
	socket := serve(t, s, ReportSocket, 0o666)
	talk(t, dialFromAs(t, labtest.Netns(t), 0, socket), post("/v1/reports", exampleReport))
	if got := <-asked; got.Caller.Owner {
		t.Error("an owner all the same")
	}
}
