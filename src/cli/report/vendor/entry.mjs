// What the report needs of ECharts, and nothing else.
import {init, use} from 'echarts/core';
import {BarChart, HeatmapChart, LineChart, ScatterChart} from 'echarts/charts';
import {DataZoomSliderComponent, GridComponent, LegendComponent, TooltipComponent, VisualMapContinuousComponent} from 'echarts/components';
import {CanvasRenderer} from 'echarts/renderers';

use([BarChart, HeatmapChart, LineChart, ScatterChart]);
use([DataZoomSliderComponent, GridComponent, LegendComponent, TooltipComponent, VisualMapContinuousComponent, CanvasRenderer]);
export {init};
