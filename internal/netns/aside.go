// SPDX-License-Identifier: Apache-2.0

package netns

import "golang.org/x/sys/unix"

// OpenAside opens a namespace by way of a mount, and does not keep that: umount(2)
// refuses a mount that has an open file. A descriptor opened by way of a mount is a way
// through it, too. It needs what Do needs, and its errors are those of Open and Do.
func OpenAside(path string) (*NS, error) {
	through, err := Open(path)
	if err != nil {
		return nil, err
	}
	defer through.Close()
	var ns *NS
	err = through.Do(func() (err error) {
		ns, err = Current()
		return err
	})
	return ns, err
}

// Leads reports whether a path leads to the namespace of this number, of whatever kind:
// those of all kinds are numbered together. It opens nothing.
func Leads(path string, inode uint32) bool {
	var st unix.Stat_t
	var fs unix.Statfs_t
	return unix.Stat(path, &st) == nil && st.Ino == uint64(inode) &&
		unix.Statfs(path, &fs) == nil && fs.Type == unix.NSFS_MAGIC
}
