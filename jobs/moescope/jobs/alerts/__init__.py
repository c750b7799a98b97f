"""Red lines: paging rules applied to every slot, inside the owner's transaction."""

from moescope.jobs.alerts.open_alert import OpenAlert
from moescope.jobs.alerts.red_lines import FINAL_AFTER_US, RedLines
from moescope.jobs.alerts.series import AlertSeries, alert_id

__all__ = ["FINAL_AFTER_US", "AlertSeries", "OpenAlert", "RedLines", "alert_id"]
