package launch

import (
	"fmt"
	"path/filepath"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	criv1 "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// files mounts the agent's own: /etc/hosts, unless a volume is there, and the
// file for the container's last words.
func files(c *container) error {
	const hosts = "/etc/hosts"
	if !slices.ContainsFunc(c.Container.VolumeMounts, func(m corev1.VolumeMount) bool { return m.MountPath == hosts }) {
		data, err := c.hostsFile()
		if err != nil {
			return fmt.Errorf("hosts file: %w", err)
		}
		c.mountFile(hosts, File{
			Name: "hosts file",
			Path: filepath.Join(c.Host.Dir(c.Pod), "etc-hosts"),
			Data: data,
			Mode: 0o644,
		})
	}
	if path := c.Container.TerminationMessagePath; path != "" {
		c.mountFile(path, File{
			Name: "termination message file",
			Path: c.Host.TerminationFile(c.Pod, c.Container.Name, c.Attempt),
			Mode: 0o666, // the container's user is not known
		})
	}
	return nil
}

func (c *container) mountFile(path string, f File) {
	c.files = append(c.files, f)
	c.config.Mounts = append(c.config.Mounts,
		&criv1.Mount{ContainerPath: path, HostPath: f.Path, SelinuxRelabel: c.Host.SELinux})
}

// hostsFile is the content of the pod's /etc/hosts.
func (f *Facts) hostsFile() ([]byte, error) {
	var b strings.Builder
	if f.Pod.Spec.HostNetwork {
		node, err := f.NodeHosts()
		if err != nil {
			return nil, err
		}
		b.WriteString("# Kubernetes-managed hosts file (host network).\n")
		b.Write(node)
	} else {
		name, domain := f.Host.hostname(f.Pod)
		b.WriteString("# Kubernetes-managed hosts file.\n" +
			"127.0.0.1\tlocalhost\n::1\tlocalhost ip6-localhost ip6-loopback\n" +
			"fe00::0\tip6-localnet\nfe00::0\tip6-mcastprefix\nfe00::1\tip6-allnodes\nfe00::2\tip6-allrouters\n")
		for _, ip := range f.PodIPs {
			if domain != "" {
				fmt.Fprintf(&b, "%s\t%s.%s\t%s\n", ip, name, domain, name)
			} else {
				fmt.Fprintf(&b, "%s\t%s\n", ip, name)
			}
		}
	}
	if len(f.Pod.Spec.HostAliases) > 0 {
		b.WriteString("\n# Entries added by HostAliases.\n")
		for _, a := range f.Pod.Spec.HostAliases {
			fmt.Fprintf(&b, "%s\t%s\n", a.IP, strings.Join(a.Hostnames, "\t"))
		}
	}
	return []byte(b.String()), nil
}
