"""Parts of train_pointcloud.py: shapes, clouds made of them, the loop, logs and pictures."""
