package pod

import (
	"os"
	"path/filepath"

	corev1 "k8s.io/api/core/v1"

	"github.com/shoal-project/shoal/agent/logs"
	"github.com/shoal-project/shoal/agent/record"
)

// makeLogDir makes the directory of a container's logs, or with an empty name
// the pod's.
func (m *Manager) makeLogDir(p *corev1.Pod, container string) error {
	return logs.MakeDir(m.Host.PodLogsDir, filepath.Join(m.Host.LogDir(p), container))
}

// WrittenLogs are the logs that containers write now.
func (m *Manager) WrittenLogs() []logs.Written {
	var out []logs.Written
	for _, p := range m.Pods() {
		found, ok := m.View(p.UID)
		if !ok {
			continue
		}
		for i := range found.Observed.Containers {
			if c := &found.Observed.Containers[i]; c.State == record.Running && c.LogPath != "" {
				out = append(out, logs.Written{ID: c.ID, Path: c.LogPath, Bounded: c.LogBounded})
			}
		}
	}
	return out
}

// linkLog makes the flat link that log collectors look for.
func (m *Manager) linkLog(p *corev1.Pod, logPath, container, id string) {
	if link := m.link(p, container, id); link != "" {
		os.Remove(link)
		if err := os.Symlink(filepath.Join(m.Host.LogDir(p), logPath), link); err != nil {
			m.Log.Debug("no link to a container log", "link", link, "err", err)
		}
	}
}

func (m *Manager) unlinkLog(p *corev1.Pod, container, id string) {
	if link := m.link(p, container, id); link != "" {
		os.Remove(link)
	}
}

func (m *Manager) link(p *corev1.Pod, container, id string) string {
	return logs.Link(m.Host.ContainerLogsDir, p.Name, p.Namespace, container, id)
}

// keepLog keeps the log of a container that was removed to begin anew: how it ended
// is to be found there. That of the run before goes.
func (m *Manager) keepLog(p *corev1.Pod, a Action) {
	m.unlinkLog(p, a.Name, a.ID)
	if a.Attempt > 0 {
		m.removeLog(p, Action{Name: a.Name, ID: a.ID, Attempt: a.Attempt - 1})
	}
}

// removeLog removes the logs of a container that was removed, and its last
// words.
func (m *Manager) removeLog(p *corev1.Pod, a Action) {
	m.unlinkLog(p, a.Name, a.ID)
	os.Remove(m.Host.TerminationFile(p, a.Name, a.Attempt))
	log := logs.File{Dir: m.Host.PodLogsDir, Path: filepath.Join(m.Host.LogDir(p), logs.Name(a.Name, a.Attempt))}
	if err := logs.Remove(log); err != nil {
		m.Log.Debug("a log of a removed container stays", "log", log.Path, "err", err)
	}
}
