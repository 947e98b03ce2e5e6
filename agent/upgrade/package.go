package upgrade

import (
	"bytes"
	"context"
	"crypto/md5" // what dpkg knows files by; nobody's word is taken for it
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
)

// Formats of packages.
const (
	Deb = "deb"
	RPM = "rpm"
)

const packageName = "shoal"

// Package is a package in a file, or the one that is installed.
type Package struct{ Format, Name, Version, Arch string }

// Program is the version as the programs tell it: without the packager's revision, and
// with a pre-release after a hyphen.
func (p Package) Program() string {
	version := p.Version
	if i := strings.LastIndexByte(version, '-'); p.Format == Deb && i > 0 {
		version = version[:i]
	}
	return "v" + strings.Replace(version, "~", "-", 1)
}

// magic is what files of a format begin with.
var magic = map[string]string{Deb: "!<arch>\n", RPM: "\xed\xab\xee\xdb"}

func format(file string) (string, error) {
	f, err := os.Open(file)
	if err != nil {
		return "", err
	}
	defer f.Close()
	head := make([]byte, 8)
	n, _ := io.ReadFull(f, head)
	for name, begin := range magic {
		if strings.HasPrefix(string(head[:n]), begin) {
			return name, nil
		}
	}
	return "", fmt.Errorf("%s is neither a deb nor an rpm", file)
}

// Inspect reads what a package's file says of itself.
func Inspect(ctx context.Context, file string) (Package, error) {
	kind, err := format(file)
	if err != nil {
		return Package{}, err
	}
	args := []string{"rpm", "-qp", "--nosignature", "--qf", "%{NAME}\n%{VERSION}\n%{ARCH}\n", file}
	if kind == Deb {
		args = []string{"dpkg-deb", "-W", "--showformat", "${Package}\n${Version}\n${Architecture}\n", file}
	}
	out, err := output(ctx, args...)
	if err != nil {
		return Package{}, err
	}
	return parsePackage(kind, out)
}

func parsePackage(kind, out string) (Package, error) {
	fields := strings.Fields(out)
	if len(fields) != 3 {
		return Package{}, fmt.Errorf("the %s tells no name, version and architecture: %.200q", kind, out)
	}
	return Package{Format: kind, Name: fields[0], Version: fields[1], Arch: fields[2]}, nil
}

// Installed is the package that this machine's programs are of.
func Installed(ctx context.Context) (Package, error) {
	out, err := output(ctx, "dpkg-query", "-W", "-f", "${db:Status-Status}\n${Package}\n${Version}\n${Architecture}\n",
		packageName)
	if rest, ok := strings.CutPrefix(out, "installed\n"); err == nil && ok {
		return parsePackage(Deb, rest)
	}
	out, err = output(ctx, "rpm", "-q", "--qf", "%{NAME}\n%{VERSION}\n%{ARCH}\n", packageName)
	if err != nil {
		return Package{}, errors.New("the programs of this machine are of no package of dpkg or rpm: " +
			"install the new ones as the old ones were, and restart the services")
	}
	return parsePackage(RPM, out)
}

// Check tells why a package cannot follow the installed one.
func Check(installed, next Package) error {
	switch {
	case next.Name != packageName:
		return fmt.Errorf("it is the package %s, not %s", next.Name, packageName)
	case next.Format != installed.Format:
		return fmt.Errorf("it is of the form %s; this machine's packages are of the form %s", next.Format,
			installed.Format)
	case next.Arch != installed.Arch:
		return fmt.Errorf("it is for %s; this machine is %s", next.Arch, installed.Arch)
	case next.Version == installed.Version:
		return fmt.Errorf("%w: version %s", ErrInstalled, next.Version)
	case next.Program() == installed.Program():
		return fmt.Errorf("it has the programs of %s, which is installed: install it as any other package",
			installed.Version)
	}
	return Fits(installed.Version, next.Version)
}

// ErrInstalled is of a package that is installed already.
var ErrInstalled = errors.New("it is installed already")

// Rehearse has the package manager say what keeps it from installing a package.
func Rehearse(ctx context.Context, kind, file string) error {
	args := []string{"rpm", "-U", "--oldpackage", "--test", file}
	if kind == Deb {
		args = []string{"dpkg", "--no-act", "--force-downgrade", "-i", file}
	}
	_, err := output(ctx, args...)
	return err
}

// Unpack writes a package's files below a directory.
func Unpack(ctx context.Context, kind, file, dir string) error {
	if err := errors.Join(os.RemoveAll(dir), os.MkdirAll(dir, 0o700)); err != nil {
		return err
	}
	args := []string{"sh", "-c", `rpm2cpio "$1" | cpio -idm --quiet --no-absolute-filenames -D "$2"`, "sh", file, dir}
	if kind == Deb {
		args = []string{"dpkg-deb", "-x", file, dir}
	}
	_, err := output(ctx, args...)
	return err
}

// quietly tells the package's scripts that the services are not theirs to restart.
const quietly = "SHOAL_UPGRADE=1"

// install has the package manager put a package in the place of the installed one,
// whichever is newer. Files that the administrator changed stay.
func install(ctx context.Context, kind, file string) error {
	args := []string{"rpm", "-U", "--oldpackage", "--replacepkgs", file}
	if kind == Deb {
		args = []string{"dpkg", "--force-confold", "--force-downgrade", "-i", file}
	}
	_, err := output(ctx, args...)
	return err
}

// maxSaid is how much of a program's output an error tells.
const maxSaid = 600

// output runs a program to its end, in the language that is read here.
func output(ctx context.Context, args ...string) (string, error) {
	cmd := exec.CommandContext(ctx, args[0], args[1:]...)
	cmd.Env = append(os.Environ(), "LC_ALL=C.UTF-8", "DEBIAN_FRONTEND=noninteractive", quietly)
	var said bytes.Buffer
	cmd.Stderr = &said
	out, err := cmd.Output()
	if err != nil {
		text := strings.TrimSpace(said.String())
		if len(text) > maxSaid {
			text = text[len(text)-maxSaid:]
		}
		return string(out), fmt.Errorf("%s: %w: %s", args[0], err, text)
	}
	return string(out), nil
}

// Repack makes the package of the installed files anew, where nobody has kept it: the
// way back. Of rpm it cannot be done.
func Repack(ctx context.Context, installed Package, to, stage string) error {
	if installed.Format != Deb {
		return fmt.Errorf("the package of version %s is needed for the way back: put it into %s", installed.Version,
			filepath.Dir(to))
	}
	defer os.RemoveAll(stage)
	control := filepath.Join(stage, "DEBIAN")
	if err := errors.Join(os.RemoveAll(stage), os.MkdirAll(control, 0o755)); err != nil {
		return err
	}
	status, err := output(ctx, "dpkg-query", "-s", packageName)
	if err != nil {
		return err
	}
	if err := os.WriteFile(filepath.Join(control, "control"), []byte(controlOf(status)), 0o644); err != nil {
		return err
	}
	list, err := output(ctx, "dpkg-query", "--control-path", packageName)
	if err != nil {
		return err
	}
	for _, file := range strings.Fields(list) {
		name := strings.TrimPrefix(filepath.Ext(file), ".")
		if err := copyFile(file, filepath.Join(control, name)); err != nil {
			return err
		}
	}
	conffiles, err := stageFiles(ctx, stage)
	if err != nil {
		return err
	}
	if err := os.WriteFile(filepath.Join(control, "conffiles"), []byte(conffiles), 0o644); err != nil {
		return err
	}
	part := to + ".part"
	if _, err := output(ctx, "dpkg-deb", "--root-owner-group", "-Znone", "-b", stage, part); err != nil {
		return errors.Join(err, os.RemoveAll(part))
	}
	return errors.Join(os.Rename(part, to), SyncDir(filepath.Dir(to)))
}

// standIn is instead of a file that the administrator changed, and has in its place.
const standIn = "# The administrator's file stays; this one stands for the package's.\n"

// stageFiles copies the installed files, and lists those of configuration. Of configuration that was changed the first
// state is known to nobody: a mark stands for it, so that dpkg goes on holding it for
// changed.
func stageFiles(ctx context.Context, stage string) (conffiles string, err error) {
	known, err := output(ctx, "dpkg-query", "-W", "-f", "${Conffiles}\n", packageName)
	if err != nil {
		return "", err
	}
	sums := sumsOf(known)
	list, err := output(ctx, "dpkg-query", "-L", packageName)
	if err != nil {
		return "", err
	}
	for line := range strings.Lines(list) {
		file := strings.TrimSpace(line)
		info, err := os.Lstat(file)
		if errors.Is(err, fs.ErrNotExist) && sums[file] == "" {
			return "", fmt.Errorf("%s of this package is missing: install the package anew first", file)
		}
		if err == nil && !info.Mode().IsRegular() {
			continue
		}
		to := filepath.Join(stage, file)
		if sums[file] != "" {
			conffiles += file + "\n"
		}
		if err := os.MkdirAll(filepath.Dir(to), 0o755); err != nil {
			return "", err
		}
		if want := sums[file]; want != "" && md5Of(file) != want {
			err = os.WriteFile(to, []byte(standIn), 0o644)
		} else {
			err = copyFile(file, to)
		}
		if err != nil {
			return "", err
		}
	}
	return conffiles, nil
}

// sumsOf are the files of configuration that dpkg tells of, by name; a third word says
// that the package has one no more.
func sumsOf(conffiles string) map[string]string {
	sums := map[string]string{}
	for line := range strings.Lines(conffiles) {
		if f := strings.Fields(line); len(f) == 2 {
			sums[f[0]] = f[1]
		}
	}
	return sums
}

// controlOf is the control file of what dpkg says of an installed package.
func controlOf(status string) string {
	var out strings.Builder
	drop := false
	for line := range strings.Lines(status) {
		if !strings.HasPrefix(line, " ") {
			name, _, _ := strings.Cut(line, ":")
			drop = name == "Status" || name == "Conffiles" || name == "Config-Version" || strings.TrimSpace(line) == ""
		}
		if !drop {
			out.WriteString(line)
		}
	}
	return out.String()
}

func md5Of(file string) string {
	f, err := os.Open(file)
	if err != nil {
		return ""
	}
	defer f.Close()
	sum := md5.New()
	if _, err := io.Copy(sum, f); err != nil {
		return ""
	}
	return hex.EncodeToString(sum.Sum(nil))
}

// copyFile copies a file with its mode; it is on the disk when it returns.
func copyFile(from, to string) error {
	in, err := os.Open(from)
	if err != nil {
		return err
	}
	defer in.Close()
	info, err := in.Stat()
	if err != nil {
		return err
	}
	out, err := os.OpenFile(to, os.O_CREATE|os.O_TRUNC|os.O_WRONLY, info.Mode().Perm())
	if err != nil {
		return err
	}
	_, err = io.Copy(out, in)
	return errors.Join(err, out.Chmod(info.Mode().Perm()), out.Sync(), out.Close())
}

// Place copies a file to where it is kept; the name is there when all of it is.
func Place(from, to string) error {
	part := to + ".part"
	if err := copyFile(from, part); err != nil {
		return errors.Join(err, os.RemoveAll(part))
	}
	return errors.Join(os.Rename(part, to), SyncDir(filepath.Dir(to)))
}
