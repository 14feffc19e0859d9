// SPDX-License-Identifier: Apache-2.0

package registry

import (
	"bufio"
	"errors"
	"io"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/sockhealth/sockhealth/internal/netns"
)

// names sees the namespaces that are mounted somewhere, which is what a name is:
// in the calling thread's mount namespace, and in that of process 1 where it is
// another and we may look at it (an agent in a container of its own).
func (s *scan) names() error {
	if err := s.mounts("thread-self", ""); err != nil {
		return err
	}
	var own, first unix.Stat_t
	if unix.Stat(filepath.Join(s.proc, "thread-self/ns/mnt"), &own) != nil ||
		unix.Stat(filepath.Join(s.proc, "1/ns/mnt"), &first) != nil || own.Ino == first.Ino {
		return nil
	}
	return s.mounts("1", filepath.Join(s.proc, "1/root"))
}

// mounts sees the names in the mount namespace of one process, whose root
// directory is root.
func (s *scan) mounts(process, root string) error {
	f, err := os.Open(filepath.Join(s.proc, process, "mountinfo"))
	if err != nil {
		return err
	}
	defer f.Close()
	return eachName(f, func(inode uint32, point string) error {
		if s.sight(inode) {
			return nil
		}
		ns, err := netns.OpenAside(root + point)
		if errors.Is(err, netns.ErrNotNetns) || err == nil && ns.Inode() != inode {
			// Another mount covers it. It is in use all the same, but there is
			// no way to it here.
			if err == nil {
				err = ns.Close()
			}
			s.missing[inode] = netns.Refused(root + point)
			return err
		}
		return s.take(inode, root+point, ns, err)
	})
}

// eachName reads mountinfo, proc_pid_mountinfo(5), and calls fn for the mounts of
// network namespaces:
//
//	345 31 0:4 net:[4026532281] /run/netns/blue rw shared:187 - nsfs nsfs rw
func eachName(mountinfo io.Reader, fn func(inode uint32, point string) error) error {
	lines := bufio.NewScanner(mountinfo)
	lines.Buffer(nil, 1<<20) // overlays list all their layers
	for lines.Scan() {
		fields := strings.SplitN(lines.Text(), " ", 6)
		if len(fields) < 6 {
			continue
		}
		number, ok := strings.CutPrefix(fields[3], "net:[")
		if !ok {
			continue
		}
		inode, err := strconv.ParseUint(strings.TrimSuffix(number, "]"), 10, 32)
		if err != nil || !strings.Contains(fields[5], "- nsfs ") {
			continue
		}
		if err := fn(uint32(inode), unescape(fields[4])); err != nil {
			return err
		}
	}
	return lines.Err()
}

// unescape undoes what show_mountinfo does to paths.
func unescape(path string) string {
	return strings.NewReplacer(`\040`, " ", `\011`, "\t", `\012`, "\n", `\043`, "#", `\134`, `\`).Replace(path)
}
