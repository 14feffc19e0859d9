// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"hash/fnv"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"

	"github.com/sockhealth/sockhealth/test/vm/guest"
)

// modules are those a guest can load, with all they need. The kernel asks for
// them itself, by name or alias. One that a kernel has built in, or does not
// know, is left out.
var modules = []string{
	"tcp_diag", "udp_diag", "veth", "dummy", "ipvlan", "8021q", "bridge", "tun", "overlay", "sch_netem", "sch_tbf", "sch_fq",
	"nf_tables", "nft_counter", "nft_reject_ipv4", "nft_reject_ipv6", "nft_reject_inet", "nft_ct", "nft_limit", "nft_numgen",
	"nft_redir", "nft_nat", "nft_chain_nat", "nft_hash", "nft_meta", "nft_tproxy", "nf_conntrack_netlink", "macvlan", "xfrm_user",
	"cifs", "rds_tcp", // have connections of their own
}

// base returns the archive with a kernel's modules and the tools, which it
// makes at the first use, in tmp, a folder of the same file system.
func (in *installed) base(ctx context.Context, tmp string) (string, error) {
	sum := fnv.New32a()
	_, _ = sum.Write([]byte(strings.Join(modules, " ")))
	path := filepath.Join(in.dir, fmt.Sprintf("base-%08x.cpio", sum.Sum32()))
	if isFile(path) {
		return path, nil
	}
	root := filepath.Join(tmp, "base")
	lib := filepath.Join(root, "lib/modules", in.release)
	for _, dir := range []string{lib, filepath.Join(root, "bin"), filepath.Join(root, "sbin"), filepath.Join(root, "usr/bin"), filepath.Join(root, "usr/sbin")} {
		if err := os.MkdirAll(dir, 0o755); err != nil {
			return "", err
		}
	}
	if err := in.copyModules(ctx, lib); err != nil {
		return "", fmt.Errorf("collect modules of kernel %s: %w", in.name, err)
	}
	for _, index := range []string{"modules.order", "modules.builtin", "modules.builtin.modinfo"} {
		err := copyFile(filepath.Join(in.dir, "lib/modules", in.release, index), filepath.Join(lib, index))
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			return "", err
		}
	}
	if err := command(ctx, "depmod", "-b", root, in.release); err != nil {
		return "", err
	}
	busybox := "/bin/busybox"
	if in.arch != runtime.GOARCH {
		busybox = filepath.Join(in.dir, busybox)
	}
	if err := copyFile(busybox, filepath.Join(root, "bin/busybox")); err != nil {
		return "", err
	}
	// In tmp until it is whole: another machine of this kernel may be about the same,
	// and what an interruption leaves goes with tmp.
	made := filepath.Join(tmp, "base.cpio")
	if err := archive(ctx, root, made); err != nil {
		return "", err
	}
	return path, os.Rename(made, path)
}

// copyModules puts the modules into one flat folder, unpacked: busybox's
// modprobe reads no compressed ones.
func (in *installed) copyModules(ctx context.Context, lib string) error {
	for _, m := range modules {
		out, err := output(ctx, exec.CommandContext(ctx, "modprobe", "-d", in.dir, "-S", in.release, "--show-depends", m))
		if err != nil && strings.Contains(err.Error(), "Module "+m+" not found in directory") {
			continue // not in this kernel
		}
		if err != nil {
			return err
		}
		for line := range strings.Lines(string(out)) {
			fields := strings.Fields(line)
			if len(fields) < 2 || fields[0] != "insmod" {
				continue
			}
			if err := unpack(ctx, fields[1], lib); err != nil {
				return err
			}
		}
	}
	return nil
}

// unpack copies a module, decompressed.
func unpack(ctx context.Context, path, lib string) error {
	name := filepath.Base(path)
	var tool string
	switch filepath.Ext(path) {
	case ".xz":
		tool = "xz"
	case ".zst":
		tool = "zstd"
	default:
		return copyFile(path, filepath.Join(lib, name))
	}
	out, err := output(ctx, exec.CommandContext(ctx, tool, "-dcq", path))
	if err != nil {
		return err
	}
	return os.WriteFile(filepath.Join(lib, strings.TrimSuffix(name, filepath.Ext(name))), out, 0o644)
}

// inGuest is where a binary stands in the guest.
func inGuest(path string) string { return filepath.Join(guest.Folder, filepath.Base(path)) }

// overlay makes the archive of one run: the first process, the programs, and the
// source trees that their working directories belong to.
func overlay(ctx context.Context, tmp, initPath string, programs []program, spec *guest.Spec) (string, error) {
	root := filepath.Join(tmp, "overlay")
	if err := os.MkdirAll(filepath.Join(root, guest.Folder), 0o755); err != nil {
		return "", err
	}
	if err := copyFile(initPath, filepath.Join(root, "init")); err != nil {
		return "", err
	}
	done := make(map[string]bool)
	for _, p := range programs {
		for _, f := range append([]string{p.path}, p.beside...) {
			if err := copyFile(f, filepath.Join(root, inGuest(f))); err != nil {
				return "", err
			}
		}
		for _, f := range p.installed {
			if err := install(f, root); err != nil {
				return "", err
			}
		}
		top := moduleOf(p.dir)
		if done[top] {
			continue
		}
		done[top] = top != "/"
		if err := copyTree(top, p.dir, root); err != nil {
			return "", err
		}
	}
	raw, err := json.Marshal(spec)
	if err != nil {
		return "", err
	}
	if err := os.WriteFile(filepath.Join(root, guest.SpecPath), raw, 0o644); err != nil {
		return "", err
	}
	path := filepath.Join(tmp, "overlay.cpio")
	return path, archive(ctx, root, path)
}

// moduleOf returns the folder of the module that dir belongs to, "/" where it
// belongs to none.
func moduleOf(dir string) string {
	top := dir
	for top != "/" && !isFile(filepath.Join(top, "go.mod")) {
		top = filepath.Dir(top)
	}
	return top
}

// copyTree copies a module below root, at its own path; without one, makes dir.
func copyTree(top, dir, root string) error {
	if top == "/" {
		return os.MkdirAll(filepath.Join(root, dir), 0o755)
	}
	return filepath.WalkDir(top, func(path string, d fs.DirEntry, err error) error {
		switch {
		case err != nil:
			return err
		case d.IsDir() && (d.Name() == ".git" || path == filepath.Join(top, "bin")):
			return filepath.SkipDir
		case d.IsDir():
			return os.MkdirAll(filepath.Join(root, path), 0o755)
		case d.Type().IsRegular():
			return copyFile(path, filepath.Join(root, path))
		}
		return nil
	})
}

// install copies a file of this machine to its place below root.
func install(path, root string) error {
	to := filepath.Join(root, path)
	if err := os.MkdirAll(filepath.Dir(to), 0o755); err != nil {
		return err
	}
	return copyFile(path, to)
}

// archive packs a folder as the kernel wants it.
func archive(ctx context.Context, root, to string) error {
	return command(ctx, "sh", "-c", `cd "$1" && find . -print0 | cpio --null --create --format=newc --owner=0:0 --quiet >"$2"`, "sh", root, to)
}

// copyFile copies contents and permissions.
func copyFile(from, to string) error {
	st, err := os.Stat(from)
	if err != nil {
		return err
	}
	raw, err := os.ReadFile(from)
	if err != nil {
		return err
	}
	return os.WriteFile(to, raw, st.Mode().Perm())
}

// concat writes the archives one after the other, as the kernel reads them.
func concat(to string, from ...string) error {
	var all []byte
	for _, f := range from {
		raw, err := os.ReadFile(f)
		if err != nil {
			return err
		}
		all = append(all, raw...)
	}
	return os.WriteFile(to, all, 0o644)
}
