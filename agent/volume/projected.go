package volume

import (
	"context"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"github.com/shoal-project/shoal/agent/record"
)

// projectedDriver makes volumes that show objects of the API, and follow them:
// secret, configMap, downwardAPI and projected ones.
type projectedDriver struct {
	unstaged
	objects Objects
	tokens  Tokens
	facts   func(p *corev1.Pod) Facts
	mounts  mounter
}

// FromAPI tells whether a volume shows objects of the API. Containers mount
// these read-only, whatever their mounts say, as the agent writes them.
func FromAPI(v *corev1.Volume) bool {
	return v.ConfigMap != nil || v.Secret != nil || v.DownwardAPI != nil || v.Projected != nil
}

// Supports implements driver.
func (projectedDriver) Supports(s Source) bool { return FromAPI(&s.Volume) }

// Follows implements driver.
func (projectedDriver) Follows(Source) bool { return true }

// Path implements driver.
func (projectedDriver) Path(podDir string, s Source) string {
	plugin := "projected"
	switch v := &s.Volume; {
	case v.ConfigMap != nil:
		plugin = "configmap"
	case v.Secret != nil:
		plugin = "secret"
	case v.DownwardAPI != nil:
		plugin = "downward-api"
	}
	return ownDir(podDir, plugin, s)
}

// Mount implements driver. All but ConfigMaps may hold secrets: they are kept
// in memory.
func (d projectedDriver) Mount(ctx context.Context, p *corev1.Pod, v *Volume) (time.Time, error) {
	b, err := d.gather(ctx, p, &v.Volume)
	if err != nil {
		return time.Time{}, err
	}
	if v.Volume.ConfigMap != nil {
		err = os.MkdirAll(v.Path, 0o750)
	} else {
		err = tmpfsAt(d.mounts, v.Path, tmpfsOptions{mode: 0o755})
	}
	if err != nil {
		return time.Time{}, err
	}
	return b.renew, writeAtomic(v.Path, b.files, b.gid, pointsIn(p, v.Volume.Name))
}

// pointsIn finds where containers mount others of the pod's volumes within one.
func pointsIn(p *corev1.Pod, volume string) mountPoints {
	out := mountPoints{}
	record.EachContainer(p, func(c *corev1.Container) {
		for _, outer := range c.VolumeMounts {
			if outer.Name != volume || outer.SubPath != "" || outer.SubPathExpr != "" {
				continue
			}
			for _, inner := range c.VolumeMounts {
				path, err := filepath.Rel(filepath.Join("/", outer.MountPath), filepath.Join("/", inner.MountPath))
				if err == nil && path != "." && checkName(path) == nil {
					out[path] = out[path] || isDirectory(p, inner)
				}
			}
		}
	})
	return out
}

// isDirectory tells whether what a container mounts is known to be one: a part of a
// volume, or a path of the node, may be a file.
func isDirectory(p *corev1.Pod, m corev1.VolumeMount) bool {
	if m.SubPath != "" || m.SubPathExpr != "" {
		return false
	}
	for i := range p.Spec.Volumes {
		if v := &p.Spec.Volumes[i]; v.Name == m.Name && v.HostPath != nil {
			st, err := os.Stat(v.HostPath.Path)
			return err == nil && st.IsDir()
		}
	}
	return true
}

// Unmount implements driver.
func (d projectedDriver) Unmount(_ context.Context, v *Volume) error {
	return removeDir(d.mounts, v.Path)
}

// gather reads all that a volume shows.
func (d projectedDriver) gather(ctx context.Context, p *corev1.Pod, v *corev1.Volume) (*bundle, error) {
	b := &bundle{d: d, pod: p, files: map[string]file{}, gid: noGroup}
	var err error
	switch {
	case v.ConfigMap != nil:
		s := v.ConfigMap
		err = b.configMap(ctx,
			configSource{name: s.Name, items: s.Items, optional: s.Optional, mode: modeOf(s.DefaultMode)})
	case v.Secret != nil:
		s := v.Secret
		mode := modeOf(s.DefaultMode)
		err = b.secret(ctx, configSource{name: s.SecretName, items: s.Items, optional: s.Optional, mode: mode})
	case v.DownwardAPI != nil:
		err = b.downward(v.DownwardAPI.Items, modeOf(v.DownwardAPI.DefaultMode))
	case v.Projected != nil:
		err = b.projected(ctx, v.Projected)
	}
	if err != nil {
		return nil, err
	}
	b.group()
	return b, nil
}

// bundle gathers the files of one volume.
type bundle struct {
	d     projectedDriver
	pod   *corev1.Pod
	files map[string]file
	gid   int // of all files
	renew time.Time
}

type configSource struct {
	name     string
	items    []corev1.KeyToPath
	optional *bool
	mode     fs.FileMode
}

func modeOf(m *int32) fs.FileMode {
	if m == nil {
		return 0o644
	}
	return fs.FileMode(*m).Perm()
}

// group gives the files to the pod's fsGroup, readable for it.
func (b *bundle) group() {
	g := fsGroup(b.pod)
	if g == nil {
		return
	}
	b.gid = int(*g)
	for name, f := range b.files {
		f.mode |= 0o440
		b.files[name] = f
	}
}

func (b *bundle) configMap(ctx context.Context, s configSource) error {
	cm, err := b.d.objects.ConfigMap(ctx, b.pod.Namespace, s.name)
	if err != nil {
		return optional(err, s.optional)
	}
	data := make(map[string][]byte, len(cm.Data)+len(cm.BinaryData))
	for k, v := range cm.Data {
		data[k] = []byte(v)
	}
	for k, v := range cm.BinaryData {
		data[k] = v
	}
	return b.keys(data, s, "configmap references non-existent config key")
}

func (b *bundle) secret(ctx context.Context, s configSource) error {
	sec, err := b.d.objects.Secret(ctx, b.pod.Namespace, s.name)
	if err != nil {
		return optional(err, s.optional)
	}
	return b.keys(sec.Data, s, "references non-existent secret key")
}

func optional(err error, opt *bool) error {
	if apierrors.IsNotFound(err) && opt != nil && *opt {
		return nil
	}
	return err
}

// keys adds the keys of an object: all, or those that items name. missing is what is told,
// in upstream's words, of one that is not there.
func (b *bundle) keys(data map[string][]byte, s configSource, missing string) error {
	if len(s.items) == 0 {
		for k, v := range data {
			b.files[k] = file{data: v, mode: s.mode}
		}
		return nil
	}
	for _, it := range s.items {
		v, ok := data[it.Key]
		if !ok {
			if s.optional != nil && *s.optional {
				continue
			}
			return fmt.Errorf("%s: %s", missing, it.Key)
		}
		mode := s.mode
		if it.Mode != nil {
			mode = modeOf(it.Mode)
		}
		b.files[filepath.Clean(it.Path)] = file{data: v, mode: mode}
	}
	return nil
}

func (b *bundle) downward(items []corev1.DownwardAPIVolumeFile, mode fs.FileMode) error {
	facts := b.d.facts(b.pod)
	for i := range items {
		it := &items[i]
		var text string
		var err error
		switch {
		case it.FieldRef != nil:
			text, err = Field(b.pod, it.FieldRef.FieldPath, facts)
		case it.ResourceFieldRef != nil:
			text, err = Resource(b.pod, "", it.ResourceFieldRef, facts)
		}
		if err != nil {
			return err
		}
		m := mode
		if it.Mode != nil {
			m = modeOf(it.Mode)
		}
		b.files[filepath.Clean(it.Path)] = file{data: []byte(text), mode: m}
	}
	return nil
}

func (b *bundle) projected(ctx context.Context, s *corev1.ProjectedVolumeSource) error {
	mode := modeOf(s.DefaultMode)
	for i := range s.Sources {
		src := &s.Sources[i]
		var err error
		switch {
		case src.ConfigMap != nil:
			s := src.ConfigMap
			err = b.configMap(ctx, configSource{name: s.Name, items: s.Items, optional: s.Optional, mode: mode})
		case src.Secret != nil:
			s := src.Secret
			err = b.secret(ctx, configSource{name: s.Name, items: s.Items, optional: s.Optional, mode: mode})
		case src.DownwardAPI != nil:
			err = b.downward(src.DownwardAPI.Items, mode)
		case src.ServiceAccountToken != nil:
			err = b.token(ctx, src.ServiceAccountToken, mode)
		case src.ClusterTrustBundle != nil:
			err = fmt.Errorf("clusterTrustBundle projections are not supported by this node yet")
		case src.PodCertificate != nil:
			err = fmt.Errorf("podCertificate projections are not supported by this node yet")
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// token adds a token, readable by the pod's user alone where that is known.
func (b *bundle) token(ctx context.Context, s *corev1.ServiceAccountTokenProjection, mode fs.FileMode) error {
	text, renew, err := b.d.tokens.Token(ctx, b.pod, s)
	if err != nil {
		return err
	}
	if b.renew.IsZero() || renew.Before(b.renew) {
		b.renew = renew
	}
	f := file{data: []byte(text), mode: mode}
	if uid := commonUser(b.pod); uid >= 0 {
		f.user, f.mode = uid, 0o600
	} else if fsGroup(b.pod) != nil {
		f.mode = 0o600
	}
	b.files[filepath.Clean(s.Path)] = f
	return nil
}

// commonUser is the user of all containers, -1 when they differ or the image
// decides.
func commonUser(p *corev1.Pod) int {
	uid, common := int64(-1), true
	record.EachContainer(p, func(c *corev1.Container) {
		var u *int64
		if p.Spec.SecurityContext != nil {
			u = p.Spec.SecurityContext.RunAsUser
		}
		if c.SecurityContext != nil && c.SecurityContext.RunAsUser != nil {
			u = c.SecurityContext.RunAsUser
		}
		if u == nil || uid >= 0 && *u != uid {
			common = false
			return
		}
		uid = *u
	})
	if !common {
		return -1
	}
	return int(uid)
}
