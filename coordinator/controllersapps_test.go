package main

import (
	"fmt"
	"strings"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"
)

// shown returns a namespace's pods and their images, "web-0=one web-1=two".
func (c *rig) shown(t *testing.T, ns string) (string, error) {
	pods, err := c.client.CoreV1().Pods(ns).List(t.Context(), metav1.ListOptions{})
	if err != nil {
		return "", err
	}
	var out []string
	for _, p := range pods.Items {
		out = append(out, p.Name+"="+p.Spec.Containers[0].Image)
	}
	return strings.Join(out, " "), nil
}

// testStatefulSet: STS-1, STS-11, STS-20, STS-21, STS-28, STS-29, STS-37, DIS-12.
func (c *rig) testStatefulSet(t *testing.T) {
	ns := c.namespace(t, "statefulset")
	sets := c.client.AppsV1().StatefulSets(ns)
	_, err := sets.Create(t.Context(), &appsv1.StatefulSet{
		ObjectMeta: metav1.ObjectMeta{Name: "web"}, Spec: appsv1.StatefulSetSpec{
			Replicas: ptr.To[int32](3), ServiceName: "web", Selector: selector("web"), Template: template("web", "one"),
			PersistentVolumeClaimRetentionPolicy: &appsv1.StatefulSetPersistentVolumeClaimRetentionPolicy{
				WhenScaled: appsv1.DeletePersistentVolumeClaimRetentionPolicyType},
			VolumeClaimTemplates: []corev1.PersistentVolumeClaim{{
				ObjectMeta: metav1.ObjectMeta{Name: "data"},
				Spec: corev1.PersistentVolumeClaimSpec{
					AccessModes: []corev1.PersistentVolumeAccessMode{corev1.ReadWriteOnce},
					Resources: corev1.VolumeResourceRequirements{
						Requests: corev1.ResourceList{corev1.ResourceStorage: resource.MustParse("1Gi")}},
				},
			}},
		},
	}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	patch := func(patch string) {
		t.Helper()
		if _, err := sets.Patch(t.Context(), "web", types.StrategicMergePatchType, []byte(patch),
			metav1.PatchOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	rolled := func(what, pods string, updated int32) {
		t.Helper()
		within(t, what, func() error {
			s, err := sets.Get(t.Context(), "web", metav1.GetOptions{})
			if err != nil {
				return err
			}
			got, err := c.shown(t, ns)
			if n := int32(strings.Count(pods, "=")); err == nil &&
				(got != pods || s.Status.ObservedGeneration < s.Generation ||
					s.Status.Replicas != n || s.Status.AvailableReplicas != n || s.Status.UpdatedReplicas != updated) {
				err = fmt.Errorf("pods %s, status %+v", got, s.Status)
			}
			return err
		})
	}
	rolled("three pods", "web-0=one web-1=one web-2=one", 3)
	patch(`{"spec":{"updateStrategy":{"rollingUpdate":{"partition":2}},"template":{"spec":{"containers":[{"name":"c","image":"two"}]}}}}`)
	rolled("partition", "web-0=one web-1=one web-2=two", 1)
	if err := c.client.CoreV1().Pods(ns).Delete(t.Context(), "web-0", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	rolled("old revision below the partition", "web-0=one web-1=one web-2=two", 1)
	patch(`{"spec":{"updateStrategy":{"rollingUpdate":{"partition":0}}}}`)
	rolled("update", "web-0=two web-1=two web-2=two", 3)
	patch(`{"spec":{"template":{"spec":{"containers":[{"name":"c","image":"one"}]}}}}`)
	rolled("rollback", "web-0=one web-1=one web-2=one", 3)
	revs, err := c.client.AppsV1().ControllerRevisions(ns).List(t.Context(), metav1.ListOptions{})
	if err != nil || len(revs.Items) != 2 {
		t.Errorf("%d revisions, %v; the rollback should have used the first one again", len(revs.Items), err)
	}
	patch(`{"spec":{"replicas":1}}`)
	rolled("scaled down", "web-0=one", 1)
	within(t, "claims of pods that are gone", func() error {
		claims, err := c.client.CoreV1().PersistentVolumeClaims(ns).List(t.Context(), metav1.ListOptions{})
		if err != nil || len(claims.Items) != 1 || claims.Items[0].Name != "data-web-0" {
			return fmt.Errorf("%d claims, %w", len(claims.Items), err)
		}
		return nil
	})
}

// testCronJob: CJ-1, CJ-3, JOB-33. That the last time was long ago makes one due.
func (c *rig) testCronJob(t *testing.T) {
	ns := c.namespace(t, "cronjob")
	spec := template("tick", "done")
	spec.Spec.RestartPolicy = corev1.RestartPolicyNever
	cronJobs := c.client.BatchV1().CronJobs(ns)
	_, err := cronJobs.Create(t.Context(), &batchv1.CronJob{
		ObjectMeta: metav1.ObjectMeta{Name: "tick"}, Spec: batchv1.CronJobSpec{
			Schedule: "0 * * * *", TimeZone: ptr.To("Etc/UTC"), SuccessfulJobsHistoryLimit: ptr.To[int32](1),
			JobTemplate: batchv1.JobTemplateSpec{Spec: batchv1.JobSpec{Template: spec}},
		},
	}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	run := func(ago time.Duration) (job string) {
		t.Helper()
		last := time.Now().Add(-ago)
		within(t, "status is set back", func() error {
			cj, err := cronJobs.Get(t.Context(), "tick", metav1.GetOptions{})
			if err != nil {
				return err
			}
			cj.Status.LastScheduleTime = ptr.To(metav1.NewTime(last))
			_, err = cronJobs.UpdateStatus(t.Context(), cj, metav1.UpdateOptions{})
			return err
		})
		within(t, "a job ran", func() error {
			cj, err := cronJobs.Get(t.Context(), "tick", metav1.GetOptions{})
			if err != nil {
				return err
			}
			list, err := c.client.BatchV1().Jobs(ns).List(t.Context(), metav1.ListOptions{})
			if err != nil {
				return err
			}
			if len(list.Items) != 1 || len(cj.Status.Active) != 0 || cj.Status.LastSuccessfulTime == nil ||
				!cj.Status.LastScheduleTime.After(last) {
				return fmt.Errorf("%d jobs, status %+v", len(list.Items), cj.Status)
			}
			job = list.Items[0].Name
			if want := fmt.Sprintf("tick-%d", cj.Status.LastScheduleTime.Unix()/60); job != want {
				return fmt.Errorf("job %s, want %s", job, want)
			}
			return nil
		})
		return job
	}
	first := run(90 * time.Minute)
	if err := c.client.BatchV1().Jobs(ns).Delete(t.Context(), first,
		metav1.DeleteOptions{PropagationPolicy: ptr.To(metav1.DeletePropagationBackground)}); err != nil {
		t.Fatal(err)
	}
	run(3 * time.Hour) // of the missed times the newest only
}
