package container

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"math"
	"slices"
	"strconv"
	"strings"

	"github.com/moby/sys/user"
	specs "github.com/opencontainers/runtime-spec/specs-go"
	"github.com/shoal-project/shoal/agent/beneath"
	"golang.org/x/sys/unix"
	criv1 "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// lookupUser resolves the user that a container runs as: the pod's choice,
// else the image's, by the image's own passwd and group files. Groups that
// the image gives the user are added under the Merge policy (KEP-3619).
func lookupUser(rootfs string, sc *criv1.LinuxContainerSecurityContext, image string) (specs.User, error) {
	spec, err := userSpec(sc, image)
	if err != nil {
		return specs.User{}, err
	}
	exec, err := execUser(rootfs, spec)
	if err != nil {
		return specs.User{}, err
	}
	ids := []int{exec.Uid, exec.Gid}
	if sc.GetSupplementalGroupsPolicy() == criv1.SupplementalGroupsPolicy_Merge {
		name, _, _ := strings.Cut(spec, ":")
		member, err := execUser(rootfs, name)
		if err != nil {
			return specs.User{}, err
		}
		ids = append(ids, member.Sgids...)
	}
	for _, g := range sc.GetSupplementalGroups() {
		ids = append(ids, int(g))
	}
	numbers := make([]uint32, len(ids))
	for i, id := range ids {
		if id < 0 || id > math.MaxInt32 {
			return specs.User{},
				fmt.Errorf(
					"user %q: the number %d, of the pod or of the image's passwd and group files, is none of a user or group (0 to %d)",
					spec, id, math.MaxInt32)
		}
		numbers[i] = uint32(id)
	}
	u := specs.User{UID: numbers[0], GID: numbers[1], AdditionalGids: numbers[1:]}
	slices.Sort(u.AdditionalGids)
	u.AdditionalGids = slices.Compact(u.AdditionalGids)
	return u, nil
}

// userSpec is "user[:group]", names or numbers.
func userSpec(sc *criv1.LinuxContainerSecurityContext, image string) (string, error) {
	var spec string
	switch {
	case sc.GetRunAsUser() != nil:
		spec = strconv.FormatInt(sc.GetRunAsUser().GetValue(), 10)
	case sc.GetRunAsUsername() != "":
		spec = sc.GetRunAsUsername()
	}
	if g := sc.GetRunAsGroup(); g != nil {
		if spec == "" {
			return "", errors.New("user group is specified without user")
		}
		return spec + ":" + strconv.FormatInt(g.GetValue(), 10), nil
	}
	if spec == "" {
		spec = image
	}
	return spec, nil
}

// maxUserFile bounds an image's passwd and group files.
const maxUserFile = 4 << 20

func execUser(rootfs, spec string) (*user.ExecUser, error) {
	root, err := beneath.Open(rootfs)
	if err != nil {
		return nil, fmt.Errorf("look up user %q: %w", spec, err)
	}
	defer root.Close()
	passwd, err1 := readIn(root, "etc/passwd")
	group, err2 := readIn(root, "etc/group")
	if err := errors.Join(err1, err2); err != nil {
		return nil, fmt.Errorf("look up user %q in the image: %w", spec, err)
	}
	u, err := user.GetExecUser(spec, &user.ExecUser{Home: "/"}, passwd, group)
	if err != nil {
		return nil, fmt.Errorf("look up user %q: %w", spec, err)
	}
	return u, nil
}

// readIn reads a file of an image; one that is missing is empty. Links lead
// where they would lead a process in the image.
func readIn(root *beneath.Dir, name string) (io.Reader, error) {
	data, err := root.ReadFile(name, maxUserFile, beneath.LinksOfRoot)
	if errors.Is(err, fs.ErrNotExist) || errors.Is(err, unix.ENOTDIR) {
		err = nil
	}
	return bytes.NewReader(data), err
}
