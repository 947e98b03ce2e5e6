package measure

import "testing"

func TestSample(t *testing.T) {
	s := Sample{4, 1, 3, 2}
	if s.Median() != 2.5 || s.Min() != 1 || s.Max() != 4 || s.Quantile(1) != 4 || s.Quantile(0) != 1 {
		t.Errorf("median %v, min %v, max %v", s.Median(), s.Min(), s.Max())
	}
	if none := (Sample)(nil); none.Median() != 0 || none.Min() != 0 || none.Max() != 0 {
		t.Error("nothing measured is not 0")
	}
}
