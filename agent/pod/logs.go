package pod

import (
	"os"
	"path/filepath"
	"strconv"
	"strings"

	v1 "k8s.io/api/core/v1"

	"github.com/shoal-project/shoal/agent/beneath"
)

// makeLogDir makes the directory of a container's logs, or with an empty name
// the pod's. Pods that mount the directory of logs lead it nowhere by links.
func (m *Manager) makeLogDir(p *v1.Pod, container string) error {
	if err := os.MkdirAll(m.Host.PodLogsDir, 0o755); err != nil {
		return err
	}
	d, err := beneath.Open(m.Host.PodLogsDir)
	if err != nil {
		return err
	}
	defer d.Close()
	return d.MkdirAll(filepath.Join(filepath.Base(m.Host.LogDir(p)), container), 0o755)
}

// linkLog makes the flat link that log collectors look for.
func (m *Manager) linkLog(p *v1.Pod, logPath, container, id string) {
	if link := m.link(p, container, id); link != "" {
		os.Remove(link)
		if err := os.Symlink(filepath.Join(m.Host.LogDir(p), logPath), link); err != nil {
			m.Log.Debug("no link to a container log", "link", link, "error", err)
		}
	}
}

func (m *Manager) unlinkLog(p *v1.Pod, container, id string) {
	if link := m.link(p, container, id); link != "" {
		os.Remove(link)
	}
}

func (m *Manager) link(p *v1.Pod, container, id string) string {
	if m.Host.ContainerLogsDir == "" || m.Host.ContainerLogsDir == "-" {
		return ""
	}
	return filepath.Join(m.Host.ContainerLogsDir, p.Name+"_"+p.Namespace+"_"+container+"-"+id+".log")
}

// removeLog removes the logs of a container that was removed, and its last
// words.
func (m *Manager) removeLog(p *v1.Pod, a Action) {
	m.unlinkLog(p, a.Name, a.ID)
	os.Remove(m.Host.TerminationFile(p, a.Name, a.Attempt))
	d, err := beneath.Open(m.Host.PodLogsDir)
	if err != nil {
		return
	}
	defer d.Close()
	dir := filepath.Join(filepath.Base(m.Host.LogDir(p)), a.Name)
	names, err := d.Names(dir)
	if err != nil {
		return
	}
	for _, name := range names {
		if strings.HasPrefix(name, strconv.Itoa(int(a.Attempt))+".log") {
			if err := d.Root.Remove(filepath.Join(dir, name)); err != nil {
				m.Log.Debug("a log of a removed container stays", "log", filepath.Join(dir, name), "error", err)
			}
		}
	}
}
